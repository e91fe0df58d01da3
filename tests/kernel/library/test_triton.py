"""Test that the library's Triton kernels are correct in the emulator and recommended where their profiles ship, and
that copies with one planted bug fail."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from kernrec.compile import Compiled, CompileJob, compile_many
from kernrec.gpu import find_gpu, limits
from kernrec.kernel import Kernel, Space, find_kernel
from kernrec.kernel.spec_reader import kernel_from
from kernrec.op import Problem, decode_elements, inputs
from kernrec.profile.kernel_code import compile_job_for
from kernrec.ptx import EmulationError
from kernrec.recommender.context import Context
from tests.helpers.attention import outcome
from tests.helpers.kernel_code import Config, mutants
from tests.helpers.needs import needs
from tests.helpers.products import broken
from tests.helpers.run_cache import Tensors
from tests.helpers.trial import OPS, execute, flaws, given_inputs
from tests.kernel.library.test_attention import SHAPES

TritonRun = tuple[int, Problem, Config]
"""An architecture, a problem, and a config that can run the problem."""


def results(
    kernel: Kernel, runs: list[TritonRun], make_inputs: Any
) -> Iterator[tuple[TritonRun, Tensors, Tensors | str]]:
    """Yield (run, inputs, outputs) of each run, or the error in place of the outputs. Shared memory races are errors.
    Each code is compiled once. `make_inputs` returns the inputs of a problem."""
    jobs: dict[CompileJob, list[TritonRun]] = {}
    for sm, problem, config in runs:
        jobs.setdefault(compile_job_for(kernel, config, problem, sm), []).append((sm, problem, config))
    for job, compiled in compile_many(jobs, processes=1):
        assert isinstance(compiled, Compiled), compiled
        for sm, problem, config in jobs[job]:
            tensors = make_inputs(problem)
            try:
                outputs: Tensors | str = execute(kernel, config, problem, sm, compiled.ptx, tensors)
            except EmulationError as error:
                outputs = str(error)
            yield (sm, problem, config), tensors, outputs


def faults(kernel: Kernel, runs: list[TritonRun]) -> list[str]:
    all_faults: list[str] = []
    for (_, problem, _), operands, outputs in results(kernel, runs, given_inputs):
        all_faults += [outputs] if isinstance(outputs, str) else flaws(problem, operands, outputs)
    return all_faults


SOFTMAX, LAYERNORM, MATMUL, ATTENTION = map(
    find_kernel, ("softmax_triton", "layernorm_triton", "matmul_triton", "attention_triton")
)

ARCHITECTURES = (80, 90, 120)
DIMS = [
    {"m": 16, "n": 16, "k": 16}, {"m": 1, "n": 144, "k": 48}, {"m": 80, "n": 48, "k": 176},
    {"m": 37, "n": 80, "k": 400}, {"m": 336, "n": 32, "k": 32}, {"m": 40, "n": 24, "k": 200},
    {"m": 37, "n": 48, "k": 72}, {"m": 24, "n": 80, "k": 99}, {"m": 48, "n": 33, "k": 40}, {"m": 19, "n": 37, "k": 51},
    {"m": 3, "n": 2, "k": 5},
]  # fmt: skip
"""Sizes below a tile, a k step or the pipeline depth, or above a tile band, with aligned and unaligned rows."""
COLUMNS = ("block_m", "block_n", "block_k", "num_stages", "num_warps", "group_m", "unaligned")
SMALL = dict(zip(COLUMNS, (16, 32, 16, 3, 2, 8, 0), strict=True))
DEEP = dict(zip(COLUMNS, (32, 32, 128, 2, 4, 8, 0), strict=True))
ROWS = next(tunable.values for tunable in MATMUL.tunables if tunable.name == "unaligned")
UNEVEN = dict(zip(COLUMNS, (128, 64, 32, 2, 2, 8, 8), strict=True))


def problems(dtype: str, layout: str, config: dict[str, int], sm: int = 80) -> list[Problem]:
    every = [MATMUL.definition.problem(dtype, layout, **dims) for dims in DIMS]
    return [problem for problem in every if not MATMUL.misfit(config, problem, limits(sm))]


@cache
def chosen() -> tuple[tuple[int, str, str, dict[str, int]], ...]:
    """Return (sm, dtype, layout, config): for each dtype and layout, two configs for aligned rows and one for each
    other row alignment, spread over the list of configs."""
    kinds = [(dtype, layout, rows) for dtype, layout in product(MATMUL.dtypes, MATMUL.layouts) for rows in ROWS]
    picked = []
    for number, (dtype, layout, rows) in enumerate(kinds):
        sm = ARCHITECTURES[(number if rows else number // len(ROWS)) % len(ARCHITECTURES)]
        space = Space(MATMUL, sm, limits(sm), dtype, layout)
        of_rows = [config for config in map(space.config, range(len(space))) if config["unaligned"] == rows]
        count = 1 if rows else 2
        for i in range(count if of_rows else 0):
            picked.append((sm, dtype, layout, of_rows[(count * number + i) * 7 % len(of_rows)]))
    return tuple(picked)


TARGETS = (("f32", 80), ("f16", 86), ("bf16", 120), ("f16", 89), ("f32", 90))
MORE = [(21, 48), (17, 112), (3, 2560), (1, 12000), (1, 16656)]
"""(rows, columns) of more problems: columns that are multiples of 16, and rows that do not fill a block."""

RESIDENT = {"block_rows": 4, "block_columns": 256, "resident": 1, "num_warps": 4, "aligned": 0}
TWICE = {"block_rows": 1, "block_columns": 1024, "resident": 0, "num_warps": 4, "aligned": 0}


@cache
def space(kernel: Kernel, dtype: str, sm: int) -> Space:
    return Space(kernel, sm, limits(sm), dtype, "row")


def row_runs(kernel: Kernel) -> list[TritonRun]:
    """Return one run for each (target, problem) pair. The picks cycle through the configs that can run the problem."""
    dims = [*OPS[kernel.op].problems, *({"rows": rows, "columns": columns} for rows, columns in MORE)]
    runs = []
    for turn, (dtype, sm) in enumerate(TARGETS):
        for number, sizes in enumerate(dims):
            problem = kernel.definition.problem(dtype, "row", **sizes)
            rows = space(kernel, dtype, sm).at(problem).rows
            runs.append((sm, problem, space(kernel, dtype, sm).config(int(rows[(number + 2 * turn) % len(rows)]))))
    return runs


ATTENTION_COLUMNS = ("head", "block_m", "block_n", "num_stages", "num_warps")
ATTENTION_CASES = [
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


def attention(dtype: str, head_dim: int, shape: dict[str, int], layout: str) -> Problem:
    return ATTENTION.definition.problem(dtype, layout, head_dim=head_dim, **shape)


def wrong(kernel: Kernel, runs: list[TritonRun]) -> list[str]:
    faults = []
    for (_, solved, config), operands, outputs in results(kernel, runs, inputs):
        if isinstance(outputs, str):
            faults.append(outputs)
            continue
        expected, bound = outcome(ATTENTION, {}, solved, operands)
        off = np.abs(decode_elements(outputs["o"], solved.dtype) - expected)
        if not (off <= bound).all():
            faults.append(f"{solved.key} {config}")
    return faults


@pytest.mark.slow
@pytest.mark.every(12)
@needs("triton")
@pytest.mark.parametrize("dtype", MATMUL.dtypes)
def test_awkward_matmuls_are_computed_without_races(dtype):
    of_dtype = [(sm, layout, config) for sm, kind, layout, config in chosen() if kind == dtype]
    runs = [(sm, p, config) for sm, layout, config in of_dtype for p in problems(dtype, layout, config, sm)]
    assert {problem.layout for _, problem, _ in runs} == set(MATMUL.layouts)
    assert {config["unaligned"] for *_, config in runs} == (set(ROWS) if dtype in ("f16", "bf16") else {0})
    assert faults(MATMUL, runs) == []


@pytest.mark.slow
@pytest.mark.every(12)
@needs("triton")
@pytest.mark.parametrize("dtype", sorted({dtype for dtype, _ in TARGETS}))
@pytest.mark.parametrize("kernel", [SOFTMAX, LAYERNORM], ids=lambda kernel: kernel.name)
def test_awkward_rows_are_computed_without_races(kernel, dtype):
    assert faults(kernel, [run for run in row_runs(kernel) if run[1].dtype == dtype]) == []


@pytest.mark.slow
@pytest.mark.every(5)
@needs("triton")
@pytest.mark.parametrize("case", ATTENTION_CASES, ids=str)
def test_awkward_attention_is_computed_without_races(case):
    sm, dtype, head_dim, values = case
    config = dict(zip(ATTENTION_COLUMNS, values, strict=True))
    layouts = [ATTENTION.layouts[number % 2] for number in range(len(SHAPES))]
    problems = [attention(dtype, head_dim, *shaped) for shaped in zip(SHAPES, layouts, strict=True)]
    assert wrong(ATTENTION, [(sm, solved, config) for solved in problems]) == []


def broken_row_runs(kernel: Kernel, config: dict[str, int]) -> list[TritonRun]:
    dims = [*OPS[kernel.op].problems, {"rows": 5, "columns": 200}]
    every = [kernel.definition.problem("f32", "row", **sizes) for sizes in dims]
    return [(80, problem, config) for problem in every if not kernel.misfit(config, problem, limits(80))]


ATTENTION_RUNS = [
    (80, attention("f16", 40, shape, "bshd"), dict(zip(ATTENTION_COLUMNS, (64, 64, 32, 3, 4), strict=True)))
    for shape in (PROMPT, FULL)
]
CONFIGS = {"SMALL": SMALL, "DEEP": DEEP, "RESIDENT": RESIDENT, "TWICE": TWICE}
"""Configs by name, as the files in `mutants` refer to them."""


def runs_of(kernel: Kernel, mutant: dict[str, str]) -> list[TritonRun]:
    if kernel is ATTENTION:
        return ATTENTION_RUNS
    config = CONFIGS[mutant["config"]]
    if kernel is MATMUL:
        return [(80, problem, config) for problem in problems(mutant["dtype"], mutant["layout"], config)]
    return broken_row_runs(kernel, config)


@pytest.mark.slow
@pytest.mark.every(8)
@needs("triton")
@pytest.mark.parametrize(
    ("kernel", "mutant"),
    [(kernel, mutant) for kernel in (MATMUL, SOFTMAX, LAYERNORM, ATTENTION) for mutant in mutants(kernel.name)],
    ids=lambda value: value.name if isinstance(value, Kernel) else value["breaks"],
)
def test_suite_detects_an_error_inserted_in_the_kernel(kernel, mutant):
    mutated = broken(kernel, mutant["old"], mutant["new"])
    assert (wrong if kernel is ATTENTION else faults)(mutated, runs_of(kernel, mutant))


@pytest.mark.slow
@needs("triton")
def test_false_alignment_hint_is_detected():
    # The kernel compares only one in 16 positions with k if rows are multiples of 16, and one in 8 for multiples of 8.
    lets = MATMUL.spec["let"] | {"rows_k": "1"}
    misled = kernel_from({**MATMUL.spec, "let": lets}, MATMUL.name, MATMUL.source)
    runs = [(80, problem, UNEVEN) for problem in problems("f16", "nn", UNEVEN)]
    assert faults(misled, runs)
    assert faults(MATMUL, runs) == []


def test_listed_configs_cover_every_tunable_value():
    assert MATMUL.listed is not None
    listed = {tuple(config[name] for name in COLUMNS) for _, _, _, config in chosen()}
    assert len(listed) >= 16
    for place, name in enumerate(COLUMNS):
        assert {config[place] for config in listed} == {row[place] for row in MATMUL.listed.rows}, name


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("layout", MATMUL.layouts)
def test_triton_matmul_variant_follows_from_the_row_alignment(layout, dims):
    space = Space(MATMUL, 80, limits(80), "f16", layout)
    problem = MATMUL.definition.problem("f16", layout, **dims)
    configs = [
        config for config in map(space.config, range(len(space))) if not MATMUL.misfit(config, problem, limits(80))
    ]
    (rows,) = {config["unaligned"] for config in configs}
    m, n, k = dims["m"], dims["n"], dims["k"]
    by_matrix = {1: m if layout[0] == "t" else k, 2: k if layout[1] == "t" else n, 4: n}
    ragged = {matrix for matrix, row in by_matrix.items() if row % 8}
    if rows in (0, 8):
        assert not ragged
        assert (rows == 0) is (n % 16 == k % 16 == 0 and (m % 16 == 0 or layout[0] == "n"))
    else:
        assert all(rows & matrix for matrix in ragged)


GPUS = "a100 rtx3090 rtx4090 rtx5090 h100 b200"
"""Each GPU has shipped profiles of the Triton kernels, except the B200."""
ROW_SIZES = {"rows": 512, "columns": 4096}
PREFILL = {"heads": 32, "kv_heads": 8, "queries": 1024, "causal": 1, "head_dim": 128}
SQUARE = {"m": 1024, "n": 1024, "k": 1024}


@pytest.mark.parametrize(("kernel", "dtype", "layout", "sizes", "gpus"), [
    (SOFTMAX, "f16", "row", ROW_SIZES, GPUS), (LAYERNORM, "f16", "row", ROW_SIZES, GPUS),
    (ATTENTION, "bf16", "bhsd", PREFILL, GPUS), (MATMUL, "f16", "tn", SQUARE, "h100 b200"),
    (MATMUL, "bf16", "tn", SQUARE, "h200 rtx4090"), (MATMUL, "f32", "tn", SQUARE, "a100 h100 rtx4090 rtx5090"),
    (MATMUL, "tf32", "tn", SQUARE, "rtx3090 h100"),
])  # fmt: skip
def test_kernel_with_shipped_profiles_is_recommended(kernel, dtype, layout, sizes, gpus):
    problem = kernel.definition.problem(dtype, layout, **sizes)
    for gpu in gpus.split():
        names = [table.kernel.name for table in Context([]).on(find_gpu(gpu)).tables(problem)]
        assert (kernel.name in names) == (gpu != "b200"), gpu
