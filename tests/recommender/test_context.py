"""Test the context of a recommender, and the choice of layouts."""

import gc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernrec.emit import emit
from kernrec.errors import NoKernelError, UsageError
from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.kernel.spec_reader import kernel_from
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender, Request
from kernrec.recommender.context import Context
from kernrec.store import Database
from tests.helpers.reading import reading_here
from tests.helpers.recording import measured_row, store_rows
from tests.helpers.sharing import merge

GPU = find_gpu("a100")


def test_table_is_built_once_for_all_problems_of_a_dtype():
    context = Context([])
    small, large = (find_op("matmul").problem(m=m, n=256, k=256) for m in (64, 4096))
    table, *_ = context.on(GPU).tables(small)
    assert context.on(GPU).tables(large)[0] is table
    assert context.on(GPU).kernel_table(find_kernel("matmul_simt"), large) is table


SPEC = {
    "problem": {"tensors": {"x": {"shape": [64], "role": "inout"}}},
    "launch": [{"entry": "scale", "grid": ["1"], "block": ["64"], "arguments": ["x"]}],
}


def add_kernel(path: Path, name: str, file: str, code: str) -> str:
    kernel = kernel_from(
        {**SPEC, "name": name, "source": file}, file, f"// {code}\n__global__ void scale(float* x) {{}}"
    )
    with Database.open(path, read_only=False, create=True) as database:
        database.add_kernel(kernel, kernel.definition.problem())
    return kernel.hash


def test_functions_of_the_same_name_are_distinguished_by_file(tmp_path):
    """An earlier version used the last analyzed kernel for `--kernel matmul_kernel`."""
    path = tmp_path / "own.duckdb"
    for file in ("first.cu", "second.cu", "second.cu"):
        add_kernel(path, "scale", file, file)
    context = Context([path])
    assert context.own_kernels() == ["first.cu:scale", "second.cu:scale"]
    assert context.kernel("first.cu:scale").source_name == "first.cu"
    assert [call.source_name for call in context.calls("second.cu:scale")] == ["second.cu"]
    with pytest.raises(UsageError, match=r"kernel scale is in several files .* one of \w+\.cu:scale, \w+\.cu:scale"):
        context.kernel("scale")


def test_merged_kernel_does_not_replace_a_kernel_of_the_same_name(tmp_path):
    """An earlier version used the newest kernel, so `--emit cuda` printed code from an untrusted source."""
    own, theirs = tmp_path / "own.duckdb", tmp_path / "theirs.duckdb"
    mine = add_kernel(own, "scale", "scale.cu", "mine")
    for name in ("scale", "matmul_simt", "other"):
        add_kernel(theirs, name, "scale.cu", "false")
    with reading_here(), Database.open(own, read_only=False) as database:
        merge(database, theirs)
    context = Context([own])
    assert context.kernel("scale").hash == context.kernel("scale.cu:scale").hash == mine
    assert [call.hash for call in context.calls("scale")] == [mine]
    assert context.kernel("matmul_simt").hash == find_kernel("matmul_simt").hash
    assert find_kernel("matmul_simt").hash in {kernel.hash for kernel in context.newest_by_file("matmul_simt")}
    assert mine in {kernel.hash for kernel in context.newest_by_file("scale")}
    assert context.kernel("other").owner == f"unsigned, in {own}"
    assert context.kernel("scale").owner is None
    assert context.own_kernels() == ["other", "scale", "scale.cu:matmul_simt"]


def test_untrusted_kernel_source_is_emitted_only_on_request(tmp_path):
    best = SimpleNamespace(kernel=replace(find_kernel("matmul_simt"), owner="unsigned, in x.duckdb"))
    answer = SimpleNamespace(gpu=GPU, best=best, problem=find_op("matmul").problem(m=64, n=64, k=64))
    for form in ("cuda", "ptx"):
        with pytest.raises(
            UsageError, match=r"neither yours nor kernrec's \(unsigned, in x.duckdb\); .*--untrusted-so"
        ):
            emit([answer], form)


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
    ("rtx4090", "f32", {"m": 8, "n": 4096, "k": 4096}, "nt"),  # `nt` also has a kernel for few rows
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
def test_measurements_of_any_layout_are_used_if_none_is_requested(
    recommender, tmp_path, gpu, dtype, dims, measured, layout
):
    assert recommender.recommend("matmul", gpu, dims, dtype, query=LATENCY).problem.layout != layout
    if measured is None:
        recommendation = recommender.recommend("matmul", gpu, dims, dtype, layout, LATENCY).best
    else:
        recommendation = recommender.answer(Request(gpu, None, "matvec_rows", measured, dtype, None, LATENCY)).best
    path = store_rows(tmp_path / "own.duckdb", [measured_row(gpu, recommendation, recommendation.problem)])
    answer = Recommender([path]).recommend("matmul", gpu, dims, dtype, query=LATENCY)
    assert answer.problem.layout == layout
    assert any(each.source == "measured" for each in answer.recommendations)


def test_databases_are_closed_if_no_layout_has_a_kernel(tmp_path):
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
