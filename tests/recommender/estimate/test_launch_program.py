"""A launch costs the same from a program as from its expressions one by one."""

import numpy as np
import pytest

from kernrec.gpu import find_gpu
from kernrec.kernel.library import find_kernel
from kernrec.op import find_op
from kernrec.recommender.estimate.prediction import predict
from kernrec.recommender.estimate.shortlist import quick_costs
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Stack

PRODUCT = {"m": 1000, "n": 520, "k": 264}
CASES = (
    ("matmul_simt", "rtx4090", "f32", "nn", PRODUCT), ("matmul_wgmma", "h200", "f16", "nt", PRODUCT),
    ("matmul_mma", "a100", "bf16", "nn", PRODUCT | {"batch": 3}),
    ("softmax_rows", "t4", "f32", None, {"rows": 77, "columns": 5000}),
    ("conv2d_implicit_gemm_simt", "rtx4090", "f32", None, {"n": 2, "c": 32, "h": 14, "w": 14, "k": 64, "r": 3, "s": 3}),
    ("attention_mma", "a100", "f16", None,
     {"batch": 2, "heads": 8, "kv_heads": 2, "queries": 500, "keys": 600, "head_dim": 64, "causal": 1}),
)  # fmt: skip


def table_of(kernel: str, gpu: str, dtype: str, layout: str | None, dims: dict[str, int]) -> StaticTable:
    """A new table, whose space has no program yet."""
    spec, card = find_kernel(kernel), find_gpu(gpu)
    problem = find_op(spec.op).problem(dtype, layout, **dims)
    return StaticTable.of(spec, problem, card, Stack([]).profiles(spec.name, spec.hash, card.sm))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_launches_cost_the_same_by_program_and_by_column(
    case: tuple[str, str, str, str | None, dict[str, int]],
) -> None:
    kernel, *_, dtype, layout, dims = case
    problem = find_op(find_kernel(kernel).op).problem(dtype, layout, **dims)
    plain, flat = table_of(*case), table_of(*case)
    flat.space._columns.compile(flat.space._test, flat.kernel.launch_expressions)
    alone, together = plain.space.at(problem), flat.space.at(problem)
    rows = plain.runnable(alone)
    assert len(rows) > 0
    np.testing.assert_array_equal(flat.runnable(together), rows)
    for quick, expected_quick in zip(quick_costs(flat, together, rows), quick_costs(plain, alone, rows), strict=True):
        np.testing.assert_array_equal(quick, expected_quick)
    by_column, by_program = predict(plain, alone, rows), predict(flat, together, rows)
    assert plain.programs(alone) is None
    assert flat.programs(together) is not None
    np.testing.assert_array_equal(by_program.nominal.columns(), by_column.nominal.columns())
    for ours, theirs in zip(by_program.launches, by_column.launches, strict=True):
        np.testing.assert_array_equal(ours.positions, theirs.positions)
        for name in ("pipe_clk", "rows", "dram_bytes"):
            np.testing.assert_array_equal(getattr(ours.times, name), getattr(theirs.times, name))
