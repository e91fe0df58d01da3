"""Test that `softmax_triton` and `layernorm_triton` are correct, and are recommended where their profiles ship.

If Triton is installed, the tests compile configs and emulate whole grids on rows that are not aligned, with
shared memory races as errors. Copies of the kernels with one planted bug must fail.
"""

from dataclasses import replace
from functools import cache

import pytest

from kernrec.gpu import find_gpu, limits
from kernrec.kernel import Kernel, Space, find_kernel
from kernrec.recommender.context import Context
from tests.helpers.trial import OPS
from tests.helpers.triton_library import TritonRun, faults

SOFTMAX, LAYERNORM = "softmax_triton", "layernorm_triton"
KERNELS = [find_kernel(SOFTMAX), find_kernel(LAYERNORM)]
EACH = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
TARGETS = (("f32", 80), ("f16", 86), ("bf16", 120), ("f16", 89), ("f32", 90))
MORE = [(21, 48), (17, 112), (3, 2560), (1, 12000), (1, 16656)]
"""(rows, columns) of more problems: columns that are multiples of 16, and rows that do not fill a block."""

RESIDENT = {"block_rows": 4, "block_columns": 256, "resident": 1, "num_warps": 4, "aligned": 0}
TWICE = {"block_rows": 1, "block_columns": 1024, "resident": 0, "num_warps": 4, "aligned": 0}
MUTANTS = [
    # columns: kernel, what breaks, original source, broken source, config
    (SOFTMAX, "columns past the end", '+ start + place, mask=inside, other=float("-inf")', "+ start + place", RESIDENT),
    (SOFTMAX, "rows past the end", "(row < rows) & (place < columns)", "place < columns", RESIDENT),
    (SOFTMAX, "the largest value so far", "tl.maximum(most, value)", "tl.maximum(LOWEST, value)", TWICE),
    (SOFTMAX, "the sum so far", "total * tl.exp(most - higher)", "total", TWICE),
    (SOFTMAX, "sums of places", "total * tl.exp(most - highest)", "total", TWICE),
    (SOFTMAX, "the largest value of the row", "highest = tl.max(most, 1)[:, None]", "highest = most", TWICE),
    (SOFTMAX, "where a chunk is written", "tl.store(y + start + first + place", "tl.store(y + start + place", TWICE),
    (LAYERNORM, "columns past the end", "tl.where(place < columns, value - mean, 0.0)", "value - mean", RESIDENT),
    (LAYERNORM, "rows past the end", "(row < rows) & (place < columns)", "place < columns", RESIDENT),
    (LAYERNORM, "epsilon", "apart, 1)[:, None] * share + 1e-5", "apart, 1)[:, None] * share + 1e-3", RESIDENT),
    (LAYERNORM, "a place's mean", "apart * (1 / count)", "apart", TWICE),
    (LAYERNORM, "a place's squares", "apart * (value - mine)", "apart * apart", TWICE),
    (LAYERNORM, "columns past the end, read twice", "tl.where(here, value - mine, 0.0)", "value - mine", TWICE),
    (LAYERNORM, "values of a short chunk's places", "count, count - 1)", "count, count)", TWICE),
    (LAYERNORM, "the means of places", "squares + apart * apart * number", "squares", TWICE),
    (LAYERNORM, "where a chunk is written", "tl.store(y + start + first + place", "tl.store(y + start + place", TWICE),
    (LAYERNORM, "the weights of a chunk", "weight + first + place", "weight + place", TWICE),
]  # fmt: skip


@cache
def space(kernel: Kernel, dtype: str, sm: int) -> Space:
    """Return the configs of a kernel."""
    return Space(kernel, sm, limits(sm), dtype, "row")


def chosen(kernel: Kernel) -> list[TritonRun]:
    """Return one run for each (target, problem) pair; the picks cycle through the configs that can run the problem."""
    dims = [*OPS[kernel.op].problems, *({"rows": rows, "columns": columns} for rows, columns in MORE)]
    runs = []
    for turn, (dtype, sm) in enumerate(TARGETS):
        for number, sizes in enumerate(dims):
            problem = kernel.definition.problem(dtype, "row", **sizes)
            rows = space(kernel, dtype, sm).at(problem).rows
            runs.append((sm, problem, space(kernel, dtype, sm).config(int(rows[(number + 2 * turn) % len(rows)]))))
    return runs


@pytest.mark.slow
@pytest.mark.every(12)
@pytest.mark.parametrize("dtype", sorted({dtype for dtype, _ in TARGETS}))
@EACH
def test_awkward_rows_are_computed_without_races(kernel, dtype):
    pytest.importorskip("triton.compiler", reason="needs the extra `triton`")
    assert faults(kernel, [run for run in chosen(kernel) if run[1].dtype == dtype]) == []


@pytest.mark.slow
@pytest.mark.every(8)
@pytest.mark.parametrize(("name", "breaks", "old", "new", "config"), MUTANTS, ids=[f"{m[0]}: {m[1]}" for m in MUTANTS])
def test_mutated_source_fails(name, breaks, old, new, config):
    pytest.importorskip("triton.compiler", reason="needs the extra `triton`")
    kernel = find_kernel(name)
    problems = [kernel.definition.problem("f32", "row", **dims) for dims in OPS[kernel.op].problems]
    problems.append(kernel.definition.problem("f32", "row", rows=5, columns=200))
    runs = [(80, problem, config) for problem in problems if kernel.fits(config, problem, limits(80))]
    assert faults(replace(kernel, source=kernel.source.replace(old, new)), runs), breaks


@EACH
def test_kernel_with_shipped_profiles_is_recommended(kernel):
    problem = kernel.definition.problem("f16", "row", rows=512, columns=4096)
    for gpu in ("a100", "rtx3090", "rtx4090", "rtx5090", "h100", "b200"):
        names = [table.kernel.name for table in Context([]).tables(problem, find_gpu(gpu))]
        assert (kernel.name in names) == (gpu != "b200"), gpu
