"""Test that `attention_triton` is correct in the emulator, and is recommended where its profiles ship.

If Triton is installed, the tests compile configs and emulate whole grids on problems that divide no tile, with shared
memory races as errors. Copies of the kernel with one planted bug must fail.
"""

from dataclasses import replace

import numpy as np
import pytest

from kernrec.gpu import find_gpu
from kernrec.kernel import Kernel, find_kernel
from kernrec.op import Problem, decode_elements, inputs
from kernrec.recommender.context import Context
from tests.helpers.attention import outcome
from tests.helpers.triton_library import TritonRun, results
from tests.kernel.library.test_attention import SHAPES

KERNEL = find_kernel("attention_triton")
COLUMNS = ("head", "block_m", "block_n", "num_stages", "num_warps")
CASES = [
    # columns: sm, dtype, head_dim, config
    (80, "f16", 40, (64, 16, 128, 2, 4)),
    (86, "bf16", 64, (64, 128, 32, 4, 4)),
    (89, "f16", 104, (128, 16, 64, 3, 4)),
    (120, "bf16", 128, (128, 128, 64, 2, 8)),
    (80, "f16", 200, (256, 64, 32, 2, 4)),
    (90, "f16", 64, (64, 128, 64, 3, 8)),  # the weights stay in registers
    (100, "bf16", 128, (128, 128, 64, 2, 8)),  # halves of packed registers stay undefined
]
PROMPT = {"heads": 2, "kv_heads": 1, "queries": 70, "keys": 140, "causal": 1}
FULL = {"batch": 2, "heads": 2, "queries": 9, "keys": 75}
MUTANTS = [
    # columns: what breaks, original source, broken source
    ("keys past the end", "inside & (key < end)[:, None] if MASKED", "inside if MASKED"),
    ("the mask", "key[None, :] < visible[:, None]", "key[None, :] <= visible[:, None]"),
    ("keys that are not there", "tl.minimum(keys, row + 1 + older)", "row + 1 + older"),
    ("tiles without a mask", "first + 1 + older) // BLOCK_N", "first + BLOCK_M + older) // BLOCK_N"),
    ("the last tile", "tl.minimum(keys, first + BLOCK_M + older)", "tl.minimum(keys, first + older)"),
    ("sums of weights", "total * shrink", "total"),
    ("results so far", "sums * shrink[:, None]", "sums"),
    ("the head of a group", "(head // group) * kv_head", "head * kv_head"),
    ("the next values", "        v += step\n", ""),
    ("columns past head_dim", "width < head_dim", "width < HEAD"),
    ("the scale", "tl.rsqrt(head_dim.to(tl.float32))", "tl.rsqrt(head_dim.to(tl.float32) + 1)"),
    ("the order in memory", "row[:, None].to(tl.int64) * (q_pitch * head_dim)", "row[:, None].to(tl.int64) * head_dim"),
    ("queries past the end", "result, mask=(row < queries)[:, None] & inside", "result, mask=inside"),
]  # fmt: skip


def problem(dtype: str, head_dim: int, shape: dict[str, int], layout: str) -> Problem:
    """Return a problem of this shape for a dtype, head_dim and layout."""
    return KERNEL.definition.problem(dtype, layout, head_dim=head_dim, **shape)


def wrong(kernel: Kernel, runs: list[TritonRun]) -> list[str]:
    """Return the errors and wrong results of the runs."""
    faults = []
    for (_, solved, config), operands, outputs in results(kernel, runs, inputs):
        if isinstance(outputs, str):
            faults.append(outputs)
            continue
        expected, bound = outcome(KERNEL, {}, solved, operands)
        off = np.abs(decode_elements(outputs["o"], solved.dtype) - expected)
        if not (off <= bound).all():
            faults.append(f"{solved.key} {config}")
    return faults


@pytest.mark.slow
@pytest.mark.every(5)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_awkward_problems_are_computed_without_races(case):
    pytest.importorskip("triton.compiler", reason="needs the extra `triton`")
    sm, dtype, head_dim, values = case
    config = dict(zip(COLUMNS, values, strict=True))
    layouts = [KERNEL.layouts[number % 2] for number in range(len(SHAPES))]
    problems = [problem(dtype, head_dim, *shaped) for shaped in zip(SHAPES, layouts, strict=True)]
    assert wrong(KERNEL, [(sm, solved, config) for solved in problems]) == []


@pytest.mark.slow
@pytest.mark.every(8)
@pytest.mark.parametrize(("breaks", "old", "new"), MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
def test_mutated_source_fails(breaks, old, new):
    pytest.importorskip("triton.compiler", reason="needs the extra `triton`")
    config = dict(zip(COLUMNS, (64, 64, 32, 3, 4), strict=True))
    runs = [(80, problem("f16", 40, shape, "bshd"), config) for shape in (PROMPT, FULL)]
    assert wrong(replace(KERNEL, source=KERNEL.source.replace(old, new)), runs), breaks


def test_kernel_with_shipped_profiles_is_recommended():
    solved = problem("bf16", 128, {"heads": 32, "kv_heads": 8, "queries": 1024, "causal": 1}, "bhsd")
    for gpu in ("a100", "rtx3090", "rtx4090", "rtx5090", "h100", "b200"):
        assert (KERNEL.name in [t.kernel.name for t in Context([]).tables(solved, find_gpu(gpu))]) == (gpu != "b200"), (
            gpu
        )
