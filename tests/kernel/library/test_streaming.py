"""The kernels that memory bounds: they compute their op, without races, and move every byte once in whole sectors."""

import random
from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np
import pytest

from kernrec.compile import Compiled, NoCompilerError, compile_source
from kernrec.compile.profiler import profile_code
from kernrec.gpu import limits
from kernrec.kernel import Kernel, Space, find_kernel
from kernrec.kernel.binding import Pointer, bind_launches, workspaces
from kernrec.op import Problem, decode, encode, find_op, inputs, reference
from kernrec.op.dtype import BYTES
from kernrec.ptx import Module, emulate, parse

ROUNDING = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}
"""How far rounding a result of f32 arithmetic to its dtype moves it, relative to it."""

LEAST = {"f32": 0.0, "f16": 2.0**-25, "bf16": 2.0**-134}
"""The same below the least normal number, absolute."""

PROBLEMS: dict[str, list[dict[str, int]]] = {
    "matvec": [
        {"m": 1, "k": 1},
        {"m": 5, "k": 3, "n": 2},
        {"m": 67, "k": 129, "n": 3},
        {"m": 33, "k": 520, "n": 16},
        {"m": 70, "k": 264, "n": 5},
        {"m": 3, "k": 16400},
        {"m": 21, "k": 2056, "n": 9},
    ],
    "transpose": [
        {"rows": 1, "columns": 1},
        {"rows": 1, "columns": 70},
        {"rows": 131, "columns": 3},
        {"rows": 37, "columns": 45},
        {"rows": 72, "columns": 136},
        {"rows": 264, "columns": 24},
    ],
    "elementwise": [{"n": 1}, {"n": 31}, {"n": 1000}, {"n": 4097}, {"n": 20008}, {"n": 70000}],
}

ROUNDINGS = {"matvec": lambda problem: int(problem.names["k"]), "transpose": lambda _: 0, "elementwise": lambda _: 2}
"""f32 roundings on the way to one result, each of at most half a unit in the last place of what is summed up."""

Case = tuple[str, str, int]
"""A kernel, and the dtype and architecture it is compiled for: without and with conversions to bfloat16."""

NAMES = ("matvec_rows", "transpose_tiled", "elementwise_stream")
PER_CASE = pytest.mark.parametrize(
    "case", [*product(NAMES, ROUNDING, (75, 86))], ids=lambda case: "-".join(map(str, case))
)


@cache
def _compile(case: Case, code: tuple[tuple[str, int], ...]) -> tuple[Compiled, Module]:
    kernel = find_kernel(case[0])
    try:
        compiled = compile_source(kernel.source, case[2], kernel.defines(dict(code), case[1], "row"))
    except NoCompilerError as error:
        pytest.skip(str(error))
    return compiled, parse(compiled.ptx)


def _code(kernel: Kernel, config: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((name, config[name]) for name in kernel.code_tunables)


@cache
def _space(case: Case) -> Space:
    name, dtype, sm = case
    return Space(find_kernel(name), sm, limits(sm), dtype, "row")


@cache
def _sample(case: Case) -> list[dict[str, int]]:
    """Configs that between them take every value of every tunable."""
    space = _space(case)
    missing = {(name, int(value)) for name, column in space.columns.items() for value in np.unique(column)}
    order = list(range(len(space)))
    random.Random(str(case)).shuffle(order)
    sample = []
    while missing:
        row = max(order, key=lambda row: len(missing.intersection(space.config(row).items())))
        sample.append(space.config(row))
        missing -= set(sample[-1].items())
    return sample


def _runs(case: Case) -> Iterator[tuple[dict[str, int], Problem]]:
    """Each config of the sample on each problem it can run, with the run-time tunables that were used longest ago."""
    name, dtype, sm = case
    kernel = find_kernel(name)
    levers = [tunable for tunable in kernel.tunables if tunable.launch]
    names = [tunable.name for tunable in levers]
    settings = [dict(zip(names, values, strict=True)) for values in product(*(t.values for t in levers))]
    for dims in PROBLEMS[kernel.op]:
        problem = find_op(kernel.op).problem(dtype=dtype, layout="row", **dims)
        for config in _sample(case):
            fitting = (s for s in settings if kernel.fits(config | s, problem, limits(sm)))
            if (setting := next(fitting, None)) is not None:
                settings.remove(setting)
                settings.append(setting)
                yield config | setting, problem


def _run(case: Case, config: dict[str, int], problem: Problem, buffers: dict[str, np.ndarray]) -> None:
    kernel = find_kernel(case[0])
    _, module = _compile(case, _code(kernel, config))
    for scratch in workspaces(kernel, config, problem, case[2]):
        buffers[scratch.name] = np.full(scratch.elements, np.nan, np.float32)
    for launch in bind_launches(kernel, config, problem, case[2]):
        arguments = [
            (0 if a.null else a.name) if isinstance(a, Pointer) else np.uint32(a.value) for a in launch.arguments
        ]
        emulate(
            module,
            launch.entry,
            launch.grid,
            launch.block,
            arguments,
            buffers=buffers,
            shared_bytes=launch.shared_bytes,
            count=False,
            check_races=True,
        )


@cache
def _profiles(case: Case) -> list[tuple[dict[str, int], str, dict[str, dict[str, float]]]]:
    """Config, entry, and counts by term, for every launch of the codes of the sample."""
    kernel = find_kernel(case[0])
    space = _space(case)
    found = []
    for config in _sample(case):
        compiled, _ = _compile(case, _code(kernel, config))
        same = [c for c in map(space.config, range(len(space))) if _code(kernel, c) == _code(kernel, config)]
        for launch in profile_code(kernel, same, case[1], "row", case[2], compiled):
            columns = zip(launch.profile.terms, launch.profile.coefficients.T.tolist(), strict=True)
            counts = {term: dict(zip(launch.profile.metrics, column, strict=True)) for term, column in columns}
            found.append((config, launch.entry, counts))
    return found


@PER_CASE
def test_every_value_of_every_tunable_computes_the_op_without_races(case: Case) -> None:
    dtype = case[1]
    missing = {item for config in _sample(case) for item in config.items()}
    for number, (config, problem) in enumerate(_runs(case)):
        given = inputs(problem, seed=number)
        got = encode(np.full(problem.tensors["y"].shape, np.nan), dtype)
        _run(case, config, problem, {**given, "y": got})
        size = {name: encode(np.abs(decode(value, dtype)), dtype) for name, value in given.items()}
        expected = reference(problem, given)["y"]
        bound = ROUNDINGS[problem.op](problem) * 2.0**-24 * reference(problem, size)["y"]
        if problem.op != "transpose":
            bound += ROUNDING[dtype] * (np.abs(expected) + bound) + LEAST[dtype]
        wrong = ~(np.abs(decode(got, dtype) - expected) <= bound)
        assert not wrong.any(), f"{config} on {problem.key}: {wrong.sum()} of {wrong.size} values"
        missing -= set(config.items())
    assert not missing


@PER_CASE
def test_warps_never_diverge_and_shared_memory_has_no_bank_conflicts(case: Case) -> None:
    for config, entry, counts in _profiles(case):
        for term, seen in counts.items():
            assert seen["lanes"] == 32 * seen["issue"], (config, entry, term)
            for way in ("load", "store"):
                passes = seen.get(f"shared.{way}_wavefronts", 0)
                assert passes == seen.get(f"shared.{way}_ideal", 0), (config, entry, term)
                assert (passes > 0) == (entry == "transpose_tiled"), (config, entry, term)


def _streamed(entry: str, config: dict[str, int]) -> tuple[str, int, list[str]]:
    """What an entry is there to move: by which term, how many elements, of which tensors."""
    if entry.startswith("matvec_rows"):
        rows = config["threads"] // config["row_threads"] * config["rows"]
        return "k_tiles", rows * config["row_threads"] * config["vector"] * config["unroll"], ["a.read"]
    if entry == "transpose_tiled":
        return "block", config["tile_rows"] * config["tile_columns"], ["x.read", "y.write"]
    term = "tiles" if entry.endswith("_loop") else "block"
    return term, config["threads"] * config["vector"] * config["packets"], ["x.read", "b.read", "y.write"]


@PER_CASE
def test_a_full_tile_moves_every_element_once_and_whole_sectors_only(case: Case) -> None:
    for config, entry, counts in _profiles(case):
        if entry == "matvec_rows_reduce":
            continue
        term, elements, ways = _streamed(entry, config)
        for way in ways:
            assert counts[term][f"global.{way}_bytes"] == elements * BYTES[case[1]], (config, entry, way)
            assert counts[term][f"global.{way}_sectors"] * 32 == elements * BYTES[case[1]], (config, entry, way)


@pytest.mark.parametrize("case", [("matvec_rows", "f32", 75), ("matvec_rows", "f16", 86)], ids=str)
def test_a_trip_of_the_matrix_vector_product_does_exactly_its_multiply_adds(case: Case) -> None:
    for config, entry, counts in _profiles(case):
        if entry in ("matvec_rows", "matvec_rows_partial"):
            _, elements, _ = _streamed(entry, config)
            assert 32 * counts["k_tiles"]["issue.fma32"] == elements * config["columns"], config
