"""Test that the shipped model matches today's analytical model and kernel, and names its evidence."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from kernrec import paths
from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.model.learn.forest import Forest
from kernrec.model.learn.model import SHAPE, least_seconds
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.candidates import candidate_set
from kernrec.recommender.estimate.correction import inputs_of
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Evidence, Stack
from kernrec.util.human import Note

KERNEL = find_kernel("matmul_triton")
CARD = paths.shipped("db/prebuilt") / "models" / "matmul_triton.json"
AGAIN = "run tools/train_triton_model.py again: the prior, the features or the kernel changed"


def test_shipped_model_fits_the_current_features_and_kernel():
    store = ModelStore.beside([])
    scope = store.scope("matmul", KERNEL, find_gpu("a100"), "f16")
    assert store.warnings() == (), AGAIN
    assert scope is not None, AGAIN
    assert scope.trained.shipped
    assert scope.gpu_known


def test_model_with_unreadable_trees_is_reported_in_one_line_and_ignored(tmp_path):
    for path in CARD.parent.glob(f"{CARD.stem}.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes() if path.suffix == ".json" else b"")
    store = ModelStore(tmp_path, Stack([]))
    shipped = ModelStore.beside([]).scope("matmul", KERNEL, find_gpu("a100"), "f16")
    assert shipped is not None
    answers = [store.scope("matmul", KERNEL, find_gpu("a100"), "f16") for _ in range(3)]
    assert answers == [None, None, None]
    assert sum("not used" in line for line in store.warnings()) >= 1
    assert store.warnings() == ()


@pytest.mark.parametrize(("gpu", "measured"), [("a100", True), ("a100-pcie-40gb", False)])
def test_source_is_learned_on_recorded_gpus_and_transferred_to_others(gpu, measured):
    query = Query(Objective.LATENCY, top=100)
    answer = Recommender([]).recommend("matmul", gpu, {"m": 1024, "n": 1024, "k": 1024}, "f16", "nt", query)
    by_kernel: dict[str, set[str]] = {}
    for recommendation in answer.recommendations:
        by_kernel.setdefault(recommendation.kernel.name, set()).add(recommendation.latency_s.source)
    source = "learned" if measured else "transferred"
    assert by_kernel.pop("matmul_triton") == {source}
    assert set.union(*by_kernel.values()) == {"predicted"}
    (note,) = [note for note in answer.notes if note.startswith(f"source {source}")]
    assert isinstance(note, Note)
    assert "recorded by others: TorchInductor" in note.why
    assert "ships with kernrec" in note.why
    assert ("trained without" in note) is not measured


@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "h100-sxm-96gb"])
def test_less_predictable_rows_have_wider_intervals_with_their_basis(gpu):
    query, factors, notes = Query(Objective.LATENCY, top=100), [], []
    for n in (2048, 2056, 2050):  # multiples of 16 elements, of 16 bytes, and of neither
        answer = Recommender([]).recommend("matmul", gpu, {"m": 2048, "n": n, "k": 2048}, "f16", "nn", query)
        estimates = [
            recommendation.latency_s
            for recommendation in answer.recommendations
            if recommendation.kernel.name == KERNEL.name
        ]
        assert {estimate.source for estimate in estimates} == {"learned"}
        factors.append(min(estimate.high / estimate.value for estimate in estimates))
        learned = [note for note in answer.notes if isinstance(note, Note) and note.startswith("source learned")]
        notes += [note.why.rpartition("interval from ")[2] for note in learned]
    assert factors[0] < factors[1] < factors[2]
    assert len(set(notes)) == 3


@pytest.mark.parametrize(("gpu", "limited_by_physics"), [("a100-pcie-40gb", True), ("a100-sxm4-80gb", False)])
def test_correction_on_an_unrecorded_gpu_stays_above_physical_limits(gpu, limited_by_physics):
    card, problem = find_gpu(gpu), KERNEL.definition.problem("f16", "nn", m=4096, n=4096, k=4096)
    scope = ModelStore.beside([]).scope("matmul", KERNEL, card, "f16")
    assert scope is not None
    model = scope.model
    leaves = np.full(8, -0.25, np.float32)
    everything_faster = Forest(len(model.columns), 8, 0, np.zeros(0, np.uint16), leaves, 0.0)
    rash = replace(model, forests={SHAPE: everything_faster, "latency": everything_faster})
    scope = replace(scope, trained=replace(scope.trained, model=rash))
    table = StaticTable.of(KERNEL, problem, card, Stack([]).profiles(KERNEL.name, KERNEL.hash, card.sm))
    models = cast("ModelStore", SimpleNamespace(scope=lambda *_: scope, vendor_model=lambda _: None))
    (kernel,) = candidate_set([table], problem, [DEFAULT_POINT], Evidence(), models, whole_space=True).kernels
    limited, latency = kernel.limited.at(0), kernel.costs.latency.value[0]
    least = least_seconds(inputs_of(kernel.prediction, limited, np.arange(len(kernel.rows))))
    assert (latency >= least).all() == limited_by_physics
    assert (latency < limited.latency_s).any()
