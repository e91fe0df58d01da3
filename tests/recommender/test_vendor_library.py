"""An answer says what the vendor library would take, where that was recorded, and whether to call it."""

import json
from pathlib import Path

import pytest

from kernrec.cli.app import run
from kernrec.cli.choices import vendor_lines
from kernrec.gpu import find_gpu
from kernrec.model.vendor import model_file
from kernrec.model.vendor.model import VendorModel
from kernrec.op import find_op
from kernrec.paths import shipped
from kernrec.recommender import Recommender
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.vendor_library import vendor_estimate
from kernrec.store import Stack

MODELS = shipped("db/prebuilt") / "models" / "vendor"
PRODUCT = {"m": 4096, "n": 4096, "k": 4096}
PROMPT = {"heads": 32, "kv_heads": 8, "queries": 2048, "head_dim": 128, "causal": 1}


@pytest.fixture(scope="module")
def recommender() -> Recommender:
    return Recommender([])


@pytest.fixture(scope="module")
def products() -> VendorModel:
    return model_file.load(MODELS / "matmul.json")


@pytest.mark.parametrize("op", ["matmul", "attention"])
def test_the_card_says_what_was_recorded_by_whom_and_how_well_it_did(op: str) -> None:
    card = json.loads((MODELS / f"{op}.json").read_text())
    for entry in card["sets"]:
        assert {"source", "licence", "library", "recorded"} <= set(entry["origin"])
        latency = entry["heads"]["latency"]
        assert all(head["median error, problems left out"] < 0.06 for gpu, head in latency.items() if gpu != "*")
        assert "median error, card left out" in latency["*"]
    assert sum(path.stat().st_size for path in MODELS.iterdir()) < 2e6


def test_a_recorded_card_is_learned_and_any_other_transferred_with_a_wider_interval(recommender: Recommender) -> None:
    query = Query(Objective.LATENCY, top=1)
    own, other = (recommender.recommend("matmul", gpu, PRODUCT, "bf16", "nt", query) for gpu in ("h200", "rtx4090"))
    learned, transferred = own.vendor_library, other.vendor_library
    assert learned is not None
    assert transferred is not None
    assert "h200-sxm" in learned.predicted.gpus
    assert not learned.predicted.latency_s.transferred
    assert transferred.predicted.latency_s.transferred
    spread = [e.predicted.latency_s.high / e.predicted.latency_s.low for e in (learned, transferred)]
    assert spread[0] < 1.5 < spread[1]
    assert 2 * 4096**3 / own.gpu.datasheet_tensor_flops["bf16"] < learned.predicted.latency_s.value < 1e-3
    assert learned.slowdown == pytest.approx(learned.predicted.latency_s.value / own.best.latency_s.value - 1)
    power = learned.predicted.power_w
    assert power is not None
    assert 300 < power.value <= 700
    assert learned.energy_saved == pytest.approx(
        1 - learned.predicted.latency_s.value * power.value / own.best.energy_j.value
    )


@pytest.mark.parametrize(
    ("op", "shape", "dtype"),
    [
        ("matmul", PRODUCT, "f64"),
        ("matmul", PRODUCT | {"batch": 4}, "bf16"),
        ("matmul", PRODUCT | {"bias": 1}, "bf16"),
        ("attention", PROMPT | {"causal": 0}, "bf16"),
        ("attention", PROMPT, "f32"),
    ],
)
def test_what_was_not_recorded_has_no_line(op: str, shape: dict[str, int], dtype: str) -> None:
    problem = find_op(op).problem(dtype, **shape)
    model = model_file.load(MODELS / f"{op}.json")
    assert vendor_estimate(model, problem, find_gpu("a100"), None) is None


def test_at_another_power_limit_nothing_is_compared(recommender: Recommender) -> None:
    answer = recommender.recommend(
        "matmul", "h200", PRODUCT, "bf16", "nt", Query(Objective.LATENCY, power_limit_w=400.0)
    )
    assert answer.vendor_library is not None
    assert answer.vendor_library.slowdown is None
    assert not answer.vendor_library.faster
    assert len(vendor_lines(answer.vendor_library)) == 1


def test_a_user_who_should_call_the_library_is_told(products: VendorModel) -> None:
    problem, gpu = find_op("matmul").problem("bf16", "nt", **PRODUCT), find_gpu("h200")
    library = vendor_estimate(products, problem, gpu, None)
    assert library is not None
    latency_s = library.predicted.latency_s.value
    slower, near, same = (vendor_estimate(products, problem, gpu, (latency_s * f, 1.0)) for f in (1.5, 1.03, 1.01))
    assert vendor_lines(slower)[1].startswith("-33 % time and ")
    assert vendor_lines(slower)[1].endswith("against the first choice: call PyTorch.")
    assert vendor_lines(near)[1].endswith("against the first choice: PyTorch may be faster.")
    assert vendor_lines(same)[1].endswith("against the first choice.")
    assert all(len(line) < 100 for line in vendor_lines(slower))


def test_json_has_the_same_figures(recommender: Recommender, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ",".join(f"{name}={size}" for name, size in PROMPT.items())
    question = ["--op", "attention", "--gpu", "h200", "--dtype", "bf16", "--shape", shape, "--objective", "latency"]
    assert run(["recommend", *question, "--json"]) == 0
    library = json.loads(capsys.readouterr().out)["vendor_library"]
    answer = recommender.recommend("attention", "h200", PROMPT, "bf16", None, Query(Objective.LATENCY))
    assert answer.vendor_library is not None
    assert library == answer.vendor_library.as_dict()
    assert library["library"] == "vLLM"
    assert library["power_w"] is None


def test_a_damaged_model_costs_the_line_and_not_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models" / "vendor"
    folder.mkdir(parents=True)
    for path in MODELS.iterdir():
        (folder / path.name).write_bytes(path.read_bytes()[: -100 if path.suffix == ".trees" else None])
    monkeypatch.setattr("kernrec.recommender.estimate.model_store.paths.shipped", lambda name: tmp_path)
    models = ModelStore(None, Stack([]))
    assert models.vendor_model("matmul") is None
    assert models.vendor_model("softmax") is None
    (warning,) = models.warnings()
    assert "damaged" in warning
    assert "not used" in warning
