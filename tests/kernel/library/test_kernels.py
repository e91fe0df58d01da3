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
from kernrec.op import Problem, find_op, inputs, reference
from kernrec.ptx import Module, parse

ARCHITECTURES = (75, 86)  # without and with cp.async

PROBLEMS: dict[str, list[dict[str, int]]] = {
    "matmul": [
        {"m": 1, "n": 1, "k": 1},
        {"m": 1, "n": 131, "k": 5},
        {"m": 67, "n": 1, "k": 129},
        {"m": 37, "n": 45, "k": 51},
        {"m": 140, "n": 132, "k": 4},
        {"m": 3, "n": 8, "k": 640},
        {"m": 260, "n": 20, "k": 100},
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
}

CASES = [(kernel, layout, sm) for kernel in all_kernels() for layout in kernel.layouts for sm in ARCHITECTURES]
PER_CASE = pytest.mark.parametrize(
    ("kernel", "layout", "sm"), CASES, ids=[f"{kernel.name}-{layout}-sm_{sm}" for kernel, layout, sm in CASES]
)


@cache
def _compiled(kernel: Kernel, layout: str, sm: int, items: tuple[tuple[str, int], ...]) -> tuple[Compiled, Module]:
    try:
        compiled = compile_source(kernel.source, sm, kernel.defines(dict(items), "f32", layout))
    except NoCompilerError as error:
        pytest.skip(str(error))
    return compiled, parse(compiled.ptx)


def _compile(kernel: Kernel, layout: str, sm: int, config: dict[str, int]) -> tuple[Compiled, Module]:
    fixed = tuple((t.name, config[t.name]) for t in kernel.tunables if not t.launch)
    return _compiled(kernel, layout, sm, fixed)


def _sample(kernel: Kernel, layout: str, sm: int) -> Iterator[dict[str, int]]:
    """Configs that between them take every value of every tunable that the space of this architecture holds."""
    space = Space(kernel, sm, limits(sm), "f32", layout)
    order = list(range(len(space)))
    random.Random(f"{kernel.name} {layout} {sm}").shuffle(order)
    missing = {(name, int(value)) for name, column in space.columns.items() for value in np.unique(column)}
    while missing:
        # the config with the most values not seen so far, the first such in the shuffled order
        row = max(order, key=lambda row: len(missing.intersection(space.config(row).items())))
        config = space.config(row)
        missing -= set(config.items())
        yield config


def _problems(kernel: Kernel, layout: str) -> list[Problem]:
    return [find_op(kernel.op).problem(dtype="f32", layout=layout, **dims) for dims in PROBLEMS[kernel.op]]


def _reduction(problem: Problem) -> int:
    dim = problem.names
    if problem.op == "matmul":
        return int(dim["k"])
    return int(dim["c"]) // int(dim["groups"]) * int(dim["r"]) * int(dim["s"])


def _runs(kernel: Kernel, layout: str, sm: int) -> Iterator[tuple[dict[str, int], Problem]]:
    """Each config of the sample on each problem it can run; run-time tunables fall back to their first values."""
    plain = {t.name: t.values[0] for t in kernel.tunables if t.launch}
    for config in _sample(kernel, layout, sm):
        for problem in _problems(kernel, layout):
            for candidate in (config, config | plain):
                if kernel.fits(candidate, problem, limits(sm)):
                    yield candidate, problem
                    break


@cache
def _trips(kernel: Kernel, layout: str, sm: int) -> list[tuple[dict[str, int], dict[str, float]]]:
    """For each config of the sample, the counts of one trip of the main loop by one block."""
    found = []
    for config in _sample(kernel, layout, sm):
        compiled, _ = _compile(kernel, layout, sm, config)
        main = profile_code(kernel, [config | {"split_k": 1}], "f32", layout, sm, compiled)[0].profile
        per_trip = main.coefficients[:, main.terms.index("k_tiles")].tolist()
        found.append((config, dict(zip(main.metrics, per_trip, strict=True))))
    return found


@PER_CASE
def test_every_config_of_a_sample_computes_the_op_on_awkward_problems(kernel: Kernel, layout: str, sm: int) -> None:
    ran = set()
    for config, problem in _runs(kernel, layout, sm):
        given = inputs(problem, seed=len(ran))
        outputs = {
            name: np.full(tensor.shape, np.nan, np.float32)
            for name, tensor in problem.tensors.items()
            if tensor.role == "output"
        }
        _, module = _compile(kernel, layout, sm, config)
        emulate_config(kernel, config, problem, sm, module, {**given, **outputs})
        ran.add(problem)
        # Every product and sum rounds by at most half a unit in the last place of what is summed up, sum |a b|.
        magnitude = reference(problem, {name: np.abs(value) for name, value in given.items()})
        expected = reference(problem, given)
        for name, got in outputs.items():
            bound = (_reduction(problem) + 1) * 2.0**-24 * magnitude[name]
            wrong = ~(np.abs(got - expected[name]) <= bound)
            assert not wrong.any(), f"{config} on {problem.key}: {wrong.sum()} of {wrong.size} values of {name}"
    assert ran == set(_problems(kernel, layout))


@PER_CASE
def test_shared_memory_is_read_and_written_without_bank_conflicts(kernel: Kernel, layout: str, sm: int) -> None:
    for config, trip in _trips(kernel, layout, sm):
        for way in ("load", "store"):
            assert trip[f"shared.{way}_wavefronts"] == trip[f"shared.{way}_ideal"] > 0, config


@PER_CASE
def test_a_trip_of_the_main_loop_has_one_barrier_or_two_with_a_single_stage(
    kernel: Kernel, layout: str, sm: int
) -> None:
    for config, trip in _trips(kernel, layout, sm):
        assert trip["barriers"] == (2 if config["stages"] == 1 else 1), config


@PER_CASE
def test_the_main_loop_does_exactly_the_multiply_adds_of_its_tiles(kernel: Kernel, layout: str, sm: int) -> None:
    for config, trip in _trips(kernel, layout, sm):
        assert trip["issue.fma32"] * 32 == config["block_m"] * config["block_n"] * config["block_k"], config
