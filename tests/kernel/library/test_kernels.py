"""Every kernel of the library, run by the emulator on small awkward problems and held against the op's reference."""

import random
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from kernrec.compile import Compiled, NoCompilerError, compile_source
from kernrec.compile.profiler import emulate_config, profile_code
from kernrec.gpu import limits
from kernrec.kernel import Kernel, Space, all_kernels
from kernrec.kernel.binding import Pointer, bind_launches, workspaces
from kernrec.op import Problem, decode, encode, find_op, inputs, reference
from kernrec.ptx import Module, emulate, parse

ARCHITECTURES = (75, 86)  # without and with cp.async

ROUNDING = {"f32": 0.0, "tf32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}
"""How far rounding a result of f32 sums to its dtype moves it, relative to it."""

LEAST = {"f32": 0.0, "tf32": 0.0, "f16": 2.0**-25, "bf16": 2.0**-134}
"""The same below the least normal number, absolute."""

OPERANDS = {"tf32": 2.0**-10 + 2.0**-22}
"""How far rounding both operands of a product moves it, relative to it: to 10 bits of mantissa each."""

PRODUCTS = ("matmul", "conv2d")
ALONG_ROWS = ("softmax", "layernorm", "rmsnorm", "reduce")

# Odd columns, and a multiple of 16 bytes in every octave: registers hold rows more than half as long as they can.
ROWS = [
    (1, 1), (9, 3), (4, 49), (3, 67), (5, 72), (9, 136), (3, 264), (2, 520), (2, 1161), (1, 1160), (1, 2568), (2, 5128),
    (1, 8648), (1, 16648),
]  # fmt: skip

PROBLEMS: dict[str, list[dict[str, int]]] = {
    "matmul": [
        {"m": 1, "n": 1, "k": 1},
        {"m": 1, "n": 131, "k": 5},
        {"m": 67, "n": 1, "k": 129},
        {"m": 37, "n": 45, "k": 51},
        {"m": 140, "n": 132, "k": 4},
        {"m": 3, "n": 8, "k": 640},
        {"m": 260, "n": 20, "k": 100},
        {"m": 72, "n": 136, "k": 200},
    ],
    "conv2d": [
        {"c": 1, "h": 1, "w": 1, "k": 1, "r": 1, "s": 1},
        {"n": 2, "c": 3, "h": 9, "w": 7, "k": 5, "r": 3, "s": 3, "padding": 1},
        {"c": 8, "h": 6, "w": 6, "k": 36, "r": 3, "s": 3, "padding": 1},
        {"c": 4, "h": 11, "w": 8, "k": 6, "r": 2, "s": 3, "stride": 2, "padding": 2},
        {"n": 3, "c": 5, "h": 9, "w": 10, "k": 2, "r": 3, "s": 2, "dilation": 2},
        {"c": 24, "h": 5, "w": 5, "k": 12, "r": 1, "s": 1, "stride": 2, "groups": 3},
        {"n": 2, "c": 6, "h": 5, "w": 4, "k": 6, "r": 3, "s": 3, "padding": 1, "groups": 6},
        {"n": 3, "c": 40, "h": 6, "w": 2, "k": 20, "r": 1, "s": 1},
        {"c": 64, "h": 4, "w": 4, "k": 8, "r": 1, "s": 1, "groups": 2},
    ],
} | {op: [{"rows": rows, "columns": columns} for rows, columns in ROWS] for op in ALONG_ROWS}

FEW_ROWS: dict[str, list[dict[str, int]]] = {
    "matmul_skinny": [
        {"m": 1, "n": 1, "k": 1},
        {"m": 1, "n": 131, "k": 5},
        {"m": 3, "n": 8, "k": 640},
        {"m": 16, "n": 45, "k": 520},
        {"m": 17, "n": 67, "k": 264},
        {"m": 2, "n": 21, "k": 16400},
    ]
}
"""Of kernels that are there for problems of few rows only."""

Case = tuple[Kernel, str, str, int]
"""A kernel, and the dtype, layout and architecture it is compiled for."""


CASES: list[Case] = [
    (kernel, dtype, layout, sm)
    for kernel in all_kernels()
    for dtype in kernel.dtypes
    for layout in kernel.layouts
    for sm in ARCHITECTURES
    if sm >= kernel.least_sm(dtype)
]


def _per_case(*ops: str, tiled: bool = False) -> pytest.MarkDecorator:
    """Parametrises a test with the cases of these ops (tiled: of kernels with tiles in shared memory)."""
    cases = [c for c in CASES if c[0].op in ops and (not tiled or "block_k" in c[0].code_tunables)]
    return pytest.mark.parametrize(
        "case", cases, ids=[f"{k.name}-{dtype}-{layout}-sm_{sm}" for k, dtype, layout, sm in cases]
    )


@cache
def _compiled(case: Case, items: tuple[tuple[str, int], ...]) -> tuple[Compiled, Module]:
    kernel, dtype, layout, sm = case
    try:
        compiled = compile_source(kernel.source, sm, kernel.defines(dict(items), dtype, layout))
    except NoCompilerError as error:
        pytest.skip(str(error))
    return compiled, parse(compiled.ptx)


def _compile(case: Case, config: dict[str, int]) -> tuple[Compiled, Module]:
    return _compiled(case, tuple((name, config[name]) for name in case[0].code_tunables))


@cache
def _sample(case: Case) -> list[dict[str, int]]:
    """Configs that between them take every value of every tunable that the space of this architecture holds."""
    kernel, dtype, layout, sm = case
    space = Space(kernel, sm, limits(sm), dtype, layout)
    order = list(range(len(space)))
    random.Random(f"{kernel.name} {layout} {sm}").shuffle(order)
    missing = {(name, int(value)) for name, column in space.columns.items() for value in np.unique(column)}
    sample = []
    while missing:
        # the config with the most values not seen so far, the first such in the shuffled order
        row = max(order, key=lambda row: len(missing.intersection(space.config(row).items())))
        sample.append(space.config(row))
        missing -= set(sample[-1].items())
    return sample


def _problems(case: Case) -> list[Problem]:
    kernel, dtype, layout, _ = case
    chosen = FEW_ROWS.get(kernel.name, PROBLEMS[kernel.op])
    return [find_op(kernel.op).problem(dtype=dtype, layout=layout, **dims) for dims in chosen]


def _roundings(problem: Problem) -> int:
    """How many f32 operations round on the way to a result: one for each of the terms of its sum, and a few more."""
    dim = problem.names
    if problem.op == "matmul":
        return int(dim["k"]) + 1
    if problem.op == "conv2d":
        return int(dim["c"]) // int(dim["groups"]) * int(dim["r"]) * int(dim["s"]) + 1
    return int(dim["columns"]) + (1 if problem.op == "reduce" else 16)


def _magnitude(problem: Problem, given: dict[str, np.ndarray], expected: np.ndarray) -> np.ndarray:
    """What the roundings of a result are relative to."""
    value = {name: decode(tensor, problem.dtype) for name, tensor in given.items()}
    if problem.op == "rmsnorm":
        return np.abs(expected)
    if problem.op == "softmax":
        # the difference from the largest is rounded three times on its way into the exponential
        apart = np.ptp(value["x"], axis=1, keepdims=True)
        return expected * (1 + 6 * apart / _roundings(problem))
    if problem.op == "layernorm":
        x, weight, bias = value["x"], np.abs(value["weight"]), np.abs(value["bias"])
        size = np.abs(x) + np.abs(x).mean(axis=1, keepdims=True)
        return 2 * size / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * weight + bias
    # of a sum of products, sum |a b|
    return reference(problem, {name: encode(np.abs(v), problem.dtype) for name, v in value.items()})[
        find_op(problem.op).outputs[0]
    ]


def _runs(case: Case) -> Iterator[tuple[dict[str, int], Problem]]:
    """Each config of the sample on each problem it can run; run-time tunables fall back to their first values.

    Problems and values of tunables that so do not get a run are left to the first configs of the space that can.
    """
    kernel, dtype, layout, sm = case
    plain = {t.name: t.values[0] for t in kernel.tunables if t.launch}
    space = Space(kernel, sm, limits(sm), dtype, layout)
    left = dict.fromkeys(_problems(case))
    missing = {(name, int(value)) for name, column in space.columns.items() for value in np.unique(column)}
    for config in _sample(case):
        for problem in _problems(case):
            for candidate in (config, config | plain):
                if kernel.fits(candidate, problem, limits(sm)):
                    left.pop(problem, None)
                    missing -= set(candidate.items())
                    yield candidate, problem
                    break
    for problem in _problems(case):
        valid = space.valid(problem) if left or missing else np.zeros(len(space), dtype=bool)
        if problem in left and valid.any():
            yield space.config(int(valid.argmax())), problem
        for name, value in sorted(missing):
            able = valid & (space.columns[name] == value)
            if able.any():
                missing.discard((name, value))
                yield space.config(int(able.argmax())), problem


@cache
def _trips(case: Case) -> list[tuple[dict[str, int], dict[str, float]]]:
    """For each config of the sample, the counts of one trip of the main loop by one block."""
    kernel, dtype, layout, sm = case
    found = []
    for config in _sample(case):
        compiled, _ = _compile(case, config)
        main = profile_code(kernel, [config | {"split_k": 1}], dtype, layout, sm, compiled)[0].profile
        per_trip = main.coefficients[:, main.terms.index("k_tiles")].tolist()
        found.append((config, dict(zip(main.metrics, per_trip, strict=True))))
    return found


@_per_case(*PROBLEMS)
def test_every_config_of_a_sample_computes_the_op_on_awkward_problems(case: Case) -> None:
    kernel, dtype, _, sm = case
    ran: set[Problem] = set()
    for config, problem in _runs(case):
        given = inputs(problem, seed=len(ran))
        outputs = {
            name: encode(np.full(tensor.shape, np.nan), dtype)
            for name, tensor in problem.tensors.items()
            if tensor.role == "output"
        }
        _, module = _compile(case, config)
        emulate_config(kernel, config, problem, sm, module, {**given, **outputs})
        ran.add(problem)
        # In f32 every operation rounds by at most half a unit in the last place; then the result is rounded to its
        # dtype, once.
        expected = reference(problem, given)
        for name, got in outputs.items():
            relative = _roundings(problem) * 2.0**-24 + OPERANDS.get(dtype, 0.0)
            bound = relative * _magnitude(problem, given, expected[name])
            bound += ROUNDING[dtype] * (np.abs(expected[name]) + bound) + LEAST[dtype]
            wrong = ~(np.abs(decode(got, dtype) - expected[name]) <= bound)
            assert not wrong.any(), f"{config} on {problem.key}: {wrong.sum()} of {wrong.size} values of {name}"
    assert ran == set(_problems(case))


@_per_case(*PRODUCTS, tiled=True)
def test_shared_memory_is_read_and_written_without_bank_conflicts(case: Case) -> None:
    for config, trip in _trips(case):
        for way in ("load", "store"):
            assert trip[f"shared.{way}_wavefronts"] == trip[f"shared.{way}_ideal"] > 0, config


@_per_case(*PRODUCTS, tiled=True)
def test_a_trip_of_the_main_loop_has_one_barrier_or_two_with_a_single_stage(case: Case) -> None:
    for config, trip in _trips(case):
        assert trip["barriers"] == (2 if config["stages"] == 1 else 1), config


@_per_case(*PRODUCTS, tiled=True)
def test_the_main_loop_does_exactly_the_multiply_adds_of_its_tiles(case: Case) -> None:
    for config, trip in _trips(case):
        # a warp's f32 instruction does 32 of them; a multiply-add on tensor cores counts as two operations
        done = 32 * trip.get("issue.fma32", 0) + sum(v for name, v in trip.items() if name.startswith("mma.")) / 2
        assert done == config["block_m"] * config["block_n"] * config["block_k"], config


@_per_case(*ALONG_ROWS)
def test_the_threads_of_a_row_combine_their_values_without_races(case: Case) -> None:
    kernel, _, _, sm = case
    once = {tuple(config.items()): problem for config, problem in _runs(case)}
    for items, problem in once.items():
        config = dict(items)
        _, module = _compile(case, config)
        scratch = {s.name: np.zeros(s.elements, np.float32) for s in workspaces(kernel, config, problem, sm)}
        y = encode(np.zeros(problem.tensors["y"].shape), problem.dtype)
        buffers = {**inputs(problem, seed=0), "y": y, **scratch}
        for launch in bind_launches(kernel, config, problem, sm):
            arguments = [
                (0 if a.null else a.name) if isinstance(a, Pointer) else np.uint32(a.value) for a in launch.arguments
            ]
            emulate(module, launch.entry, launch.grid, launch.block, arguments, buffers=buffers, check_races=True)
    values = {item for config in _sample(case) for item in config.items()}
    assert {item for items in once for item in items} == values, "every value of every tunable ran"


@_per_case(*ALONG_ROWS)
def test_rows_are_moved_in_whole_sectors_and_read_again_only_where_registers_do_not_hold_them(case: Case) -> None:
    kernel, dtype, layout, sm = case
    whole = {t.name: t.values[0] for t in kernel.tunables if t.launch}
    for config in _sample(case):
        compiled, _ = _compile(case, config)
        profile = profile_code(kernel, [config | whole], dtype, layout, sm, compiled)[0].profile
        chunk = dict(zip(profile.metrics, profile.coefficients[:, -1].tolist(), strict=True))
        columns = config["threads_per_row"] * config["vector"] * config["packets"]
        size = config["rows_per_block"] * columns * (4 if dtype == "f32" else 2)
        assert chunk["global.x.read_bytes"] == size * (1 if config.get("resident", 1) else 2), config
        moved = ("x.read", "y.write") if kernel.op != "reduce" else ("x.read",)
        for way in moved:
            assert 32 * chunk[f"global.{way}_sectors"] == chunk[f"global.{way}_bytes"] > 0, config
        for resources in compiled.resources.values():
            assert resources.stack_bytes == resources.spill_store_bytes == 0, config
