"""The trained model that ships corrects today's prior of today's kernel, and says what it stands on."""

import json

import pytest

from kernrec import paths
from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.estimate.model_store import ModelStore

KERNEL = find_kernel("matmul_triton")
CARD = paths.shipped("db/prebuilt") / "models" / "matmul_triton.json"
AGAIN = "run tools/train_triton_model.py again: the prior, the features or the kernel changed"


def test_it_fits_the_prior_the_features_and_the_kernel_of_today() -> None:
    store = ModelStore.beside([])
    scope = store.scope("matmul", KERNEL, find_gpu("a100"))
    assert store.warnings() == (), AGAIN
    assert scope is not None, AGAIN
    assert scope.trained.shipped
    assert scope.gpu_known


def test_its_card_says_whose_recordings_it_learned_from_and_lists_none_of_their_problems() -> None:
    training = json.loads(CARD.read_text(encoding="utf-8"))["training"]
    assert "TorchInductor" in training["recorded"]
    assert any("clocks" in caveat for caveat in training["caveats"])
    assert any("older Triton" in caveat for caveat in training["caveats"])
    assert isinstance(training["problems"], int)


def test_its_interval_stands_on_problems_left_out_and_its_error_is_far_below_the_priors() -> None:
    card = json.loads(CARD.read_text(encoding="utf-8"))
    interval, scores = card["intervals"]["latency"]["*"], card["scores"]
    assert interval["kind"] == "problem"
    assert interval["groups"] > 100
    assert scores["median latency error"] < 0.5 * scores["median latency error of the prior"]


@pytest.mark.parametrize(("gpu", "measured"), [("a100", True), ("a100-pcie-40gb", False)])
def test_its_answers_are_called_learned_and_say_whether_the_card_was_recorded(gpu: str, measured: bool) -> None:
    query = Query(Objective.LATENCY, top=100)
    answer = Recommender([]).recommend("matmul", gpu, {"m": 1024, "n": 1024, "k": 1024}, "f16", "nt", query)
    by_kernel: dict[str, set[str]] = {}
    for choice in answer.choices:
        by_kernel.setdefault(choice.kernel.name, set()).add(choice.latency_s.source)
    assert by_kernel.pop("matmul_triton") == {"learned"}
    assert set.union(*by_kernel.values()) == {"prior"}
    (note,) = [note for note in answer.notes if note.startswith("source learned")]
    assert "recorded by others: TorchInductor" in note
    assert "ships with kernrec" in note
    assert ("nothing was measured on" in note) is not measured
