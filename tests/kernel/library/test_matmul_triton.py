"""Test that the library's Triton matmul is correct in the emulator, and is recommended where its profiles ship.

If Triton is installed, the tests compile configs of every dtype and layout and emulate whole grids on problems that
divide no tile, with shared memory races as errors. Copies of the kernel with one planted bug must fail.
"""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from kernrec.gpu import find_gpu, limits
from kernrec.kernel import Space, find_kernel
from kernrec.kernel.spec_reader import kernel_from
from kernrec.op import Problem
from kernrec.recommender.context import Context
from tests.helpers.triton_library import faults

KERNEL = find_kernel("matmul_triton")
ARCHITECTURES = (80, 90, 120)
DIMS = [
    {"m": 16, "n": 16, "k": 16}, {"m": 1, "n": 144, "k": 48}, {"m": 80, "n": 48, "k": 176},
    {"m": 37, "n": 80, "k": 400}, {"m": 336, "n": 32, "k": 32}, {"m": 40, "n": 24, "k": 200},
    {"m": 37, "n": 48, "k": 72}, {"m": 24, "n": 80, "k": 99}, {"m": 48, "n": 33, "k": 40}, {"m": 19, "n": 37, "k": 51},
    {"m": 3, "n": 2, "k": 5},
]  # fmt: skip
"""Sizes below a tile, a k step or the stages, and above a band of tile rows; rows of 16n, 8n or odd size."""
COLUMNS = ("block_m", "block_n", "block_k", "num_stages", "num_warps", "group_m", "unaligned")
SMALL = dict(zip(COLUMNS, (16, 32, 16, 3, 2, 8, 0), strict=True))
DEEP = dict(zip(COLUMNS, (32, 32, 128, 2, 4, 8, 0), strict=True))
ROWS = next(tunable.values for tunable in KERNEL.tunables if tunable.name == "unaligned")
UNEVEN = dict(zip(COLUMNS, (128, 64, 32, 2, 2, 8, 8), strict=True))
MUTANTS = [
    # columns: what breaks, original source, broken source, dtype, layout, config
    ("rows past the edge", "(0, BLOCK_M)) % m", "(0, BLOCK_M))", "f16", "nn", DEEP),
    ("rows of the last band", "min(tiles_m - band * GROUP_M, GROUP_M)", "GROUP_M", "f16", "nt", SMALL),
    ("tile rows of a band", "inside % rows_of_band", "inside % GROUP_M", "f16", "nt", SMALL),
    ("mask of the depth of a", "mask=depth[None, :] < left", "mask=depth[None, :] < left + 16", "bf16", "nn", DEEP),
    ("step along a transposed a", "step_a = BLOCK_K * row_a", "step_a = BLOCK_K", "f16", "tn", SMALL),
    ("step along b", "from_b += step_b", "from_b += 0", "tf32", "nn", SMALL),
    ("order of a transposed b", "if LAYOUT_NT or", "if LAYOUT_TN or", "f16", "nt", SMALL),
    ("order of a where both are transposed", "LAYOUT_TN or LAYOUT_TT", "LAYOUT_TN", "f16", "tt", SMALL),
    ("guard of the stores", "(out_n < n)[None, :]", "(out_n <= n)[None, :]", "f16", "nn", SMALL),
    ("precision of f32", 'input_precision="ieee"', 'input_precision="tf32"', "f32", "nn", SMALL),
]


def problems(dtype: str, layout: str, config: dict[str, int], sm: int = 80) -> list[Problem]:
    """Return the problems of `DIMS` that a config can run."""
    every = [KERNEL.definition.problem(dtype, layout, **dims) for dims in DIMS]
    return [problem for problem in every if KERNEL.fits(config, problem, limits(sm))]


@cache
def chosen() -> tuple[tuple[int, str, str, dict[str, int]], ...]:
    """Return (sm, dtype, layout, config): for each dtype and layout, two configs for aligned rows and one for each
    other row alignment, spread over the list of configs."""
    kinds = [(dtype, layout, rows) for dtype, layout in product(KERNEL.dtypes, KERNEL.layouts) for rows in ROWS]
    picked = []
    for number, (dtype, layout, rows) in enumerate(kinds):
        sm = ARCHITECTURES[(number if rows else number // len(ROWS)) % len(ARCHITECTURES)]
        space = Space(KERNEL, sm, limits(sm), dtype, layout)
        of_rows = [config for config in map(space.config, range(len(space))) if config["unaligned"] == rows]
        count = 1 if rows else 2
        for i in range(count if of_rows else 0):
            picked.append((sm, dtype, layout, of_rows[(count * number + i) * 7 % len(of_rows)]))
    return tuple(picked)


@pytest.mark.slow
@pytest.mark.every(12)
@pytest.mark.parametrize("dtype", KERNEL.dtypes)
def test_awkward_problems_are_computed_without_races(dtype):
    pytest.importorskip("triton.compiler", reason="needs the extra `triton`")
    of_dtype = [(sm, layout, config) for sm, kind, layout, config in chosen() if kind == dtype]
    runs = [(sm, p, config) for sm, layout, config in of_dtype for p in problems(dtype, layout, config, sm)]
    assert {problem.layout for _, problem, _ in runs} == set(KERNEL.layouts)
    assert {config["unaligned"] for *_, config in runs} == (set(ROWS) if dtype in ("f16", "bf16") else {0})
    assert faults(KERNEL, runs) == []


@pytest.mark.slow
@pytest.mark.every(8)
@pytest.mark.parametrize(("breaks", "old", "new", "dtype", "layout", "config"), MUTANTS, ids=[m[0] for m in MUTANTS])
def test_mutated_source_fails(breaks, old, new, dtype, layout, config):
    pytest.importorskip("triton.compiler", reason="needs the extra `triton`")
    broken = replace(KERNEL, source=KERNEL.source.replace(old, new))
    assert faults(broken, [(80, problem, config) for problem in problems(dtype, layout, config)]), breaks


@pytest.mark.slow
def test_false_alignment_hint_is_detected():
    # The kernel compares only one in 16 positions with k if rows are multiples of 16, and one in 8 for multiples of 8.
    pytest.importorskip("triton.compiler", reason="needs the extra `triton`")
    lets = KERNEL.spec["let"] | {"rows_k": "1"}
    broken = kernel_from({**KERNEL.spec, "let": lets}, KERNEL.name, KERNEL.source)
    runs = [(80, problem, UNEVEN) for problem in problems("f16", "nn", UNEVEN)]
    assert faults(broken, runs)
    assert faults(KERNEL, runs) == []


def test_listed_configs_cover_every_tunable_value():
    assert KERNEL.listed is not None
    listed = {tuple(config[name] for name in COLUMNS) for _, _, _, config in chosen()}
    assert len(listed) >= 16
    for place, name in enumerate(COLUMNS):
        assert {config[place] for config in listed} == {row[place] for row in KERNEL.listed.rows}, name


def test_kernel_with_shipped_profiles_is_recommended():
    for dtype, gpu, shipped in (
        ("f16", "h100", True),
        ("bf16", "h200", True),
        ("bf16", "rtx4090", True),
        ("f32", "a100", True),
        ("f32", "h100", True),
        ("f32", "rtx4090", True),
        ("f32", "rtx5090", True),
        ("tf32", "rtx3090", True),
        ("tf32", "h100", True),
        ("f16", "b200", False),
    ):
        problem = KERNEL.definition.problem(dtype, "tn", m=1024, n=1024, k=1024)
        names = [table.kernel.name for table in Context([]).tables(problem, find_gpu(gpu))]
        assert ("matmul_triton" in names) is shipped


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("layout", KERNEL.layouts)
def test_problem_runs_the_variant_for_its_row_alignment(layout, dims):
    space = Space(KERNEL, 80, limits(80), "f16", layout)
    problem = KERNEL.definition.problem("f16", layout, **dims)
    configs = [config for config in map(space.config, range(len(space))) if KERNEL.fits(config, problem, limits(80))]
    (rows,) = {config["unaligned"] for config in configs}
    m, n, k = dims["m"], dims["n"], dims["k"]
    by_matrix = {1: m if layout[0] == "t" else k, 2: k if layout[1] == "t" else n, 4: n}
    ragged = {matrix for matrix, row in by_matrix.items() if row % 8}
    if rows in (0, 8):
        assert not ragged
        assert (rows == 0) is (n % 16 == k % 16 == 0 and (m % 16 == 0 or layout[0] == "n"))
    else:
        assert all(rows & matrix for matrix in ragged)
