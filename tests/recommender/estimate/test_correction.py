"""Test estimates that trained models correct, and the inputs of these models."""

import math
import shutil
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernrec.cli.app import run
from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.model.learn.features import matrix, names, of_tunables, plan_of
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender, Request
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.recommender.answer import build_recommendation
from kernrec.recommender.candidates import candidate_set
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.recommender.estimate.space import Space
from kernrec.recommender.explain.report import explainable
from kernrec.store import Stack
from kernrec.util.human import Note
from tests.helpers.kernel_code import written_kernel
from tests.helpers.paths import beside
from tests.helpers.recording import row_of, simulated_rows, store_rows

pytest.importorskip("xgboost")

pytestmark = pytest.mark.usefixtures("compiled_here")
GPUS = {"rtx4090": 1.3, "a100-sxm4-80gb": 1.3, "rtx3090": 1.5}
FACTOR = 1.3
NEW = {"m": 900, "n": 700, "k": 300}
FASTEST = Query(Objective.LATENCY, top=1)


def trained_on(path: Path, rows: Iterable[dict[str, object]]) -> Path:
    store_rows(path, rows)
    assert run(["train", "--db", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def one_gpu(tmp_path_factory):
    rows = simulated_rows("rtx4090", 10, step=192, configs=8, factor=FACTOR)
    return trained_on(tmp_path_factory.mktemp("one") / "own.duckdb", rows)


@pytest.fixture(scope="module")
def three_gpus(tmp_path_factory):
    some = (simulated_rows(gpu, 10, step=192, configs=8, factor=factor) for gpu, factor in GPUS.items())
    rows = list(chain.from_iterable(some))
    return trained_on(tmp_path_factory.mktemp("three") / "own.duckdb", rows)


def factor_of(answer: Any) -> float:
    return answer.best.latency_s.high / answer.best.latency_s.value


@pytest.mark.slow
def test_note_explains_the_interval_of_a_transferred_prediction(one_gpu, three_gpus):
    results = []
    for database in (one_gpu, three_gpus):
        answer = Recommender([database]).recommend("matmul", "h200-sxm", NEW, query=FASTEST)
        assert answer.best.latency_s.source == "transferred"
        (note,) = [note for note in answer.notes if note.startswith("source transferred")]
        assert isinstance(note, Note)
        assert note.endswith("trained without h200-sxm")
        results.append((factor_of(answer), note.why))
    (alone, own_why), (held_out, why_of_three) = results
    assert "90 % interval from the analytical model: no GPU was held out" in own_why
    assert "90 % interval from 3 held-out GPUs and the analytical model" in why_of_three
    assert held_out < alone
    assert alone >= 2.0
    trained = Recommender([three_gpus]).recommend("matmul", "rtx4090", NEW, query=FASTEST)
    assert factor_of(trained) < held_out
    assert any("90 % interval from 10 held-out problems" in getattr(note, "why", "") for note in trained.notes)
    (about,) = trained.as_dict()["models"]
    assert (about["name"], about["problems"], about["gpu_measured"]) == ("matmul", 10, True)
    assert about["intervals"]["latency"]["groups"] == 10
    assert about["intervals"]["latency"]["pooled_with_analytical_model"] is False


def test_interval_widens_with_distance_from_measurements(one_gpu):
    recommender = Recommender([one_gpu])
    # Only matmul_simt, which the model has learned, can run rows that are no multiples of 16 elements.
    shapes = [NEW, {"m": 8192, "n": 2056, "k": 2056}, {"m": 8192, "n": 16392, "k": 16392}]
    near, far, farther = (factor_of(recommender.recommend("matmul", "rtx4090", dims, query=FASTEST)) for dims in shapes)
    assert math.log(far) > 1.5 * math.log(near)
    assert farther > far


def test_kernel_model_is_used_if_the_op_model_does_not_apply(one_gpu, tmp_path):
    gpu, simt, mma = find_gpu("rtx4090"), find_kernel("matmul_simt"), find_kernel("matmul_mma")
    for name in ("matmul_simt", "matmul"):
        shutil.copytree(one_gpu.parent / "models", tmp_path / name)
    (tmp_path / "matmul_simt" / "matmul.json").rename(tmp_path / "matmul_simt" / "matmul_simt.json")
    alone = ModelStore(tmp_path / "matmul_simt", Stack([one_gpu]))
    scope = alone.scope("matmul", simt, gpu, "f32")
    assert scope is not None
    assert scope.trained.name == "matmul_simt"
    assert alone.scope("matmul", mma, gpu, "f16") is None
    assert alone.scope("matmul", replace(simt, name="matmul_other"), gpu, "f32") is None
    both = ModelStore(tmp_path / "matmul", Stack([one_gpu])).scope("matmul", simt, gpu, "f32")
    assert both is not None
    assert both.trained.name == "matmul"


def test_model_applies_to_unmeasured_kernels_only_if_it_helped_other_kernels(one_gpu):
    learned = ModelStore.beside([one_gpu]).model("matmul", find_gpu("rtx4090"))
    assert learned is not None
    recommender = Recommender([one_gpu])
    half = find_op("matmul").problem("f16", "nn", **NEW)
    kernels = [table.kernel for table in recommender.context.on(find_gpu("rtx4090")).tables(half)]
    strange = next(kernel for kernel in kernels if kernel.name not in learned.model.kernels)
    assert learned.scope(find_gpu("rtx4090"), strange, "f16") is None  # each kernel has its own model
    recommendations = recommender.recommend(
        "matmul", "rtx4090", NEW, dtype="f16", query=Query(Objective.LATENCY, top=40)
    ).recommendations
    assert {
        recommendation.source for recommendation in recommendations if recommendation.kernel.name == strange.name
    } == {"predicted"}


def test_explanations_and_single_kernels_use_the_same_models(one_gpu, capsys):
    answer = Recommender([one_gpu]).recommend("matmul", "rtx4090", NEW, query=FASTEST)
    card = find_gpu("rtx4090")
    default = Query(Objective.LATENCY, power_limit_w=card.tdp_w)  # a query without a limit covers all limits
    request = Request(card.name, kernel="matmul_simt", shape=NEW, query=default)
    advice = Recommender([one_gpu]).answer(request)
    best = advice.best
    assert best.latency_s.source == best.energy_j.source == "learned"
    assert best.latency_s.value == pytest.approx(answer.best.latency_s.value, rel=0.02)
    assert [note for note in advice.notes if note.startswith("source learned")] == [
        note for note in answer.notes if note.startswith("source learned")
    ]
    plain = Recommender([]).answer(request)
    assert best.latency_s.value / plain.best.latency_s.value == pytest.approx(FACTOR, rel=0.1)
    request = Request(card.name, "matmul", shape=NEW, query=Query(Objective.LATENCY))
    explained, _ = explainable(request, Context([one_gpu]))
    assert build_recommendation(explained, 0, explained.fastest).latency_s == best.latency_s
    shape = ",".join(f"{name}={extent}" for name, extent in NEW.items())
    assert run(["explain", "--op", "mm", "--gpu", "rtx4090", "--shape", shape, "--db", str(one_gpu)]) == 0
    printed = capsys.readouterr()
    assert "  learned: " in printed.out
    assert "source learned: model matmul, trained on rtx4090" in printed.err


SOURCE = beside(__file__, "correction.cu")
SPEC = beside(__file__, "correction.toml")


def test_custom_kernel_is_learned_from_its_measurements(nvrtc, tmp_path):
    """Simulate a GPU that takes 1.7 times the predicted time on three shapes of one kernel."""
    kernel, gpu, path = written_kernel(tmp_path, SOURCE, SPEC), find_gpu("rtx4090"), tmp_path / "own.duckdb"
    problems = [kernel.definition.problem("f32", "row", rows=4096 * n, columns=256) for n in range(1, 5)]
    rows = []
    for problem in problems:
        whole = analyze(kernel, problem, gpu, path, Query(Objective.LATENCY), ProfilingOptions(processes=1))
        best = whole.answer.best  # all four configs take about the same time
        took_s = best.latency_s.value * 1.7
        costs = {"latency_s": took_s, "energy_j": took_s * best.power_w}
        rows += [row_of(gpu.name, kernel, {"unroll": unroll}, problem) | costs for unroll in (1, 2, 4, 8)]
    trained_on(path, rows[:-4])
    measured, learned = (
        Recommender([path]).answer(Request(gpu.name, kernel="mine", shape=problem.dim, query=Query(Objective.LATENCY)))
        for problem in problems[-2:]
    )
    assert measured.best.latency_s.source == "measured"
    assert learned.best.latency_s.source == "learned"
    for limited in learned.recommendations:
        truth = next(r["latency_s"] for r in rows[-4:] if r["config"] == dict(limited.config))
        assert limited.latency_s.low < truth < limited.latency_s.high
        assert limited.latency_s.value == pytest.approx(truth, rel=0.15)
    model = ModelStore.beside([path], Stack([path])).model("reduce", gpu)
    assert model is not None
    assert model.model.kernels == {"mine": kernel.hash}


def test_cached_features_equal_computed_ones():
    gpu = find_gpu("rtx4090")
    recommender = Recommender([])
    for m in (512, 1000):
        problem = find_op("matmul").problem(m=m, n=256, k=384)
        table = next(t for t in recommender.context.on(gpu).tables(problem) if t.kernel.name == "matmul_simt")
        (kernel,) = candidate_set(Space([table]), problem, [DEFAULT_POINT]).kernels
        positions = np.arange(0, len(kernel.rows), 7)
        inputs = kernel.model_inputs(positions)
        for columns in (names([*inputs.tunables, "of_another_kernel"]), names(), names(["block_m"])[::-1]):
            of_space = of_tunables(table.space.columns, columns, len(table))
            cached = of_space.take(kernel.rows.take(positions), axis=0)
            plan_of(table.gpu, columns).fill(inputs.quantities, cached)
            expected = matrix(inputs, columns)
            assert cached.dtype == expected.dtype
            np.testing.assert_array_equal(cached, expected)
