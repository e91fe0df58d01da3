"""The plan of a built kernel names a variant for every shape, and a good one."""

import numpy as np
import pytest

from kernrec.compile.triton_version import has_triton
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender
from kernrec.run.build import build_kernel
from kernrec.run.plan import Plan, best_variant, make_plan
from kernrec.run.shapes import Shapes

GPU = find_gpu("rtx4090")
QUERY = Query(Objective.LATENCY, top=1)
DECODE = {"m": range(1, 129), "n": 2048, "k": 512}


@pytest.fixture(scope="module")
def recommender() -> Recommender:
    return Recommender([])


def plan_of(recommender: Recommender, op: str, dtype: str, **dims: object) -> Plan:
    return make_plan(recommender, Shapes.of(find_op(op), dtype, None, dims), GPU, QUERY)


def test_every_shape_has_a_row_whose_variant_is_close_to_the_best(recommender: Recommender) -> None:
    plan = plan_of(recommender, "matmul", "f16", **DECODE)
    losses = []
    for m in np.random.default_rng(0).integers(1, 129, 6).tolist():
        problem = plan.shapes.problem({"m": m})
        row = plan.row({"m": m})
        assert row is not None
        assert row.low["m"] <= m <= row.high["m"]
        assert row.variant.fits(problem, GPU)
        candidates = recommender.candidates(problem, GPU, (QUERY.point,))
        best = candidates.latency_s[0].min()
        for number, kernel in enumerate(candidates.kernels):
            for place in range(len(kernel.rows)):
                if kernel.table.kernel is row.variant.kernel and kernel.config(place) == dict(row.variant.config):
                    losses.append(candidates.latency_s[0][candidates.starts[number] + place] / best - 1)
    assert losses
    assert np.median(losses) < 0.05
    assert max(losses) < 0.25


def test_shapes_of_other_alignment_have_rows_of_their_own(recommender: Recommender) -> None:
    plan = plan_of(recommender, "matmul", "f32", m=64, n=range(1, 1025), k=64)
    assert plan.aligned == ("n",)
    vectors = {multiple: plan.row({"n": n}).variant.config["vector"] for multiple, n in ((4, 516), (1, 515))}
    assert vectors == {4: 4, 1: 1}
    for n in (1, 2, 3, 4, 1000, 1022, 1023, 1024):
        assert plan.row({"n": n}) is not None


def test_rows_of_a_list_of_shapes_end_at_these_shapes(recommender: Recommender) -> None:
    plan = plan_of(recommender, "softmax", "f32", rows=[8, 512, 32768], columns=1024)
    assert {row.low["rows"] for row in plan.rows} | {row.high["rows"] for row in plan.rows} <= {8, 512, 32768}
    assert min(row.low["rows"] for row in plan.rows) == 8


def test_one_shape_has_one_row_with_the_recommended_config(recommender: Recommender) -> None:
    plan = plan_of(recommender, "softmax", "f32", rows=512, columns=1024)
    several = Query(Objective.LATENCY, top=10)  # a plan has no kernel of Triton's where Triton is not installed
    answer = recommender.recommend("softmax", "rtx4090", "rows=512,columns=1024", query=several)
    best = next(choice for choice in answer.choices if choice.kernel.triton is None or has_triton())
    as_fast = [c for c in answer.choices if c.latency_s.value <= best.latency_s.value * (1 + 1e-5)]
    (row,) = plan.rows
    assert (plan.as_dicts()[0]["kernel"], dict(row.variant.config)) in [
        (c.kernel.name, dict(c.config)) for c in as_fast
    ]
    assert row.latency_s == pytest.approx((best.latency_s.value,) * 2, rel=1e-5)


def test_a_plan_is_printed_as_a_table(recommender: Recommender) -> None:
    lines = str(plan_of(recommender, "matmul", "f16", **DECODE)).splitlines()
    assert lines[0] == "matmul f16,nn n=2048 k=512 on NVIDIA GeForce RTX 4090"
    assert lines[1].split() == ["m", "kernel", "config", "latency", "[us]"]
    assert lines[3].startswith("1 to ")
    assert max(map(len, lines)) <= 80


def test_kernels_in_triton_are_left_out(recommender: Recommender) -> None:
    problem = find_op("matmul").problem("f16", "nt", m=1024, n=1024, k=1024)
    assert best_variant(recommender, problem, find_gpu("a100"), QUERY).kernel.triton is None


def test_what_cannot_be_planned_is_said(recommender: Recommender) -> None:
    shapes = Shapes.of(find_op("matmul"), "tf32", None, {"m": 8, "n": 8, "k": 8})
    with pytest.raises(KernrecError, match="sm_75"):
        build_kernel(recommender, shapes, "t4", QUERY)
    with pytest.raises(UsageError, match=r"unknown objective of a build, .* 'pareto'; known: latency, energy, edp"):
        build_kernel(recommender, shapes, "l4", Query())
