"""Test that a free layout becomes the best or the measured one, and that a slow fixed layout is noted."""

import gc

import pytest

from kernrec.errors import NoKernelError
from kernrec.recommender import Objective, Query, Recommender, Request
from kernrec.store import Database
from tests.helpers.recording import row_of, store_rows

LATENCY = Query(Objective.LATENCY)
CONV = {"c": 64, "h": 56, "w": 56, "k": 64, "padding": 1}
PRODUCT = {"m": 4096, "n": 4096, "k": 4096}


def test_f16_convolutions_use_the_tensor_core_layout(recommender):
    answer = recommender.recommend("conv", "rtx4090", CONV, "f16", query=LATENCY)
    assert (answer.problem.layout, answer.layout_chosen) == ("nhwc", True)
    f32 = recommender.recommend("conv", "rtx4090", CONV, "f32", query=LATENCY)
    assert answer.best.latency_s.value < f32.best.latency_s.value


@pytest.mark.parametrize(("gpu", "dtype", "shape", "layout"), [
    ("h200", "bf16", PRODUCT, "nt"),
    ("b200", "bf16", PRODUCT, "nt"),
    ("rtx4090", "f16", PRODUCT, "nn"),  # both layouts have the same kernels
    ("rtx4090", "f32", PRODUCT, "nn"),
    ("rtx4090", "f32", {"m": 8, "n": 4096, "k": 4096}, "nt"),  # has a kernel for few rows
])  # fmt: skip
def test_matmul_uses_another_layout_if_its_kernel_ranks_first(recommender, gpu, dtype, shape, layout):
    answer = recommender.recommend("matmul", gpu, shape, dtype, query=LATENCY)
    assert answer.problem.layout == layout
    assert answer.layout_chosen == (layout != "nn")
    assert answer.as_dict()["layout_chosen"] == answer.layout_chosen


def test_fixed_layout_is_kept_and_its_cost_noted(recommender):
    fixed = recommender.recommend("matmul", "h200", PRODUCT, "bf16", "nn", LATENCY)
    assert (fixed.problem.layout, fixed.layout_chosen) == ("nn", False)
    (note,) = [line for line in fixed.notes if "layout nt" in line]
    free = recommender.recommend("matmul", "h200", PRODUCT, "bf16", query=LATENCY)
    less = 100 * (1 - free.best.latency_s.value / fixed.best.latency_s.value)
    assert less > 10
    assert f"{less:.0f} % less time" in note
    assert not any(
        "layout" in line for line in recommender.recommend("mm", "a100", PRODUCT, "f16", "nn", LATENCY).notes
    )


@pytest.mark.parametrize(("gpu", "dtype", "dims", "measured", "layout"), [
    ("h200-sxm", "bf16", PRODUCT, None, "nn"),
    ("a100-sxm4-80gb", "f16", {"m": 2, "n": 32000, "k": 64}, {"m": 32000, "k": 64, "n": 2}, "nt"),
], ids=["of the op", "of a matvec, whose rows are those of a matmul"])  # fmt: skip
def test_rows_measured_in_one_layout_are_used_without_a_layout(
    recommender, tmp_path, gpu, dtype, dims, measured, layout
):
    assert recommender.recommend("matmul", gpu, dims, dtype, query=LATENCY).problem.layout != layout
    if measured is None:
        recommendation = recommender.recommend("matmul", gpu, dims, dtype, layout, LATENCY).best
    else:
        recommendation = recommender.answer(Request(gpu, None, "matvec_rows", measured, dtype, None, LATENCY)).best
    row = row_of(gpu, recommendation.kernel, recommendation.config, recommendation.problem)
    row |= {"latency_s": recommendation.latency_s.value, "energy_j": recommendation.energy_j.value}
    path = store_rows(tmp_path / "own.duckdb", [row | {"power_w": recommendation.power_w}])
    answer = Recommender([path]).recommend("matmul", gpu, dims, dtype, query=LATENCY)
    assert answer.problem.layout == layout
    assert any(each.source == "measured" for each in answer.recommendations)


def test_refusal_in_every_layout_closes_the_databases(tmp_path):
    path = tmp_path / "own.duckdb"
    Database.open(path, read_only=False, create=True).close()
    gc.disable()  # keep objects that only the cycle collector would free
    try:
        own = Recommender([path])
        with pytest.raises(NoKernelError, match="no config of any kernel can run"):
            own.recommend(
                "attention", "l4", {"heads": 8, "queries": 64, "head_dim": 300}, "f16", None, Query(backends=("cudnn",))
            )
        del own
        Database.open(path, read_only=False).close()
    finally:
        gc.enable()
