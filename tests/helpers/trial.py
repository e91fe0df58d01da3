"""Emulator tests for library kernels: `runs` returns a case's configs and problems, `run` emulates one with shared
memory races as errors, and `flaws` compares its outputs with the reference. A new op needs an entry in `OPS` or its own
test."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product

import numpy as np
import pytest

from kernrec.gpu import limits
from kernrec.kernel import Kernel, Space, all_kernels
from kernrec.kernel.binding import bind_launches, workspaces
from kernrec.op import Problem, decode_elements, encode_elements, find_op, inputs, parse_shape, reference
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.profile.emulated_launch import emulate_config
from kernrec.ptx import EmulationError
from tests.helpers.kernel_code import Config, ptx_of
from tests.helpers.ptx_text import parsed
from tests.helpers.run_cache import Tensors, cached_run, run_key


def shapes(text: str) -> list[dict[str, int]]:
    """Return the dimensions of each shape. Blanks separate shapes, and commas separate dimensions."""
    return [parse_shape(shape) for shape in text.split()]


ARCHITECTURES = (75, 86)  # only sm_86 has cp.async and bfloat16 conversions

ROUNDING = {"f32": 0.0, "tf32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}
"""Largest relative error from rounding an f32 result to each dtype."""

LEAST = {"f32": 0.0, "tf32": 0.0, "f16": 2.0**-25, "bf16": 2.0**-134}
"""Largest absolute error from rounding a subnormal f32 result to each dtype."""

OPERANDS = {"tf32": 2.0**-10 + 2.0**-22}
"""Largest relative error of a product from rounding both operands to 10 bits of mantissa."""

Run = tuple[Config, Problem]


def _of_sums(problem: Problem, value: Tensors, expected: np.ndarray) -> np.ndarray:
    """Return sum |a b|, the magnitude of a sum of products."""
    absolute = {name: encode_elements(np.abs(v), problem.tensors[name].dtype) for name, v in value.items()}
    return reference(problem, absolute)[find_op(problem.op).outputs[0]]


def _of_softmax(problem: Problem, value: Tensors, expected: np.ndarray) -> np.ndarray:
    # The difference from the maximum is rounded three times before the exponential.
    apart = np.ptp(value["x"], axis=1, keepdims=True)
    return np.asarray(expected * (1 + 6 * apart / OPS["softmax"].roundings(problem.sizes)))


def _of_layernorm(problem: Problem, value: Tensors, expected: np.ndarray) -> np.ndarray:
    x, weight, bias = value["x"], np.abs(value["weight"]), np.abs(value["bias"])
    size = np.abs(x) + np.abs(x).mean(axis=1, keepdims=True)
    return np.asarray(2 * size / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * weight + bias)


def _of_result(problem: Problem, value: Tensors, expected: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(expected))


@dataclass(frozen=True)
class Trial:
    """Problems and error bounds for the kernels of one op."""

    problems: list[dict[str, int]]  # minimal, smaller than a tile, or no multiples of tiles
    roundings: Callable[[Mapping[str, int]], int]  # number of rounded f32 operations per result
    magnitude: Callable[[Problem, Tensors, np.ndarray], np.ndarray] = _of_sums  # size of the rounded numbers
    narrow: Sequence[dict[str, int]] = ()  # problems for 8-bit dtypes
    own: Mapping[str, Sequence[dict[str, int]]] = field(default_factory=dict)  # problems by kernel name

    def dims(self, kernel: str, dtype: str) -> Sequence[dict[str, int]]:
        narrow = ELEMENT_BYTES[dtype] == 1
        if kernel not in self.own:
            return self.narrow if narrow else self.problems
        more = [
            {"scales": number % 2, "output": number % 3} if narrow else {} for number in range(len(self.own[kernel]))
        ]
        return [dims | further for dims, further in zip(self.own[kernel], more, strict=True)]


# Row lengths are odd, or multiples of 16 bytes that fill over half of the registers of a config.
ROWS = [
    (1, 1), (9, 3), (4, 49), (3, 67), (5, 72), (9, 136), (3, 264), (2, 520), (2, 1161), (1, 1160), (1, 2568), (2, 5128),
    (1, 8648), (1, 16648),
]  # fmt: skip
_ROWS = [{"rows": rows, "columns": columns} for rows, columns in ROWS]

OPS: dict[str, Trial] = {
    "matmul": Trial(
        shapes(
            "m=1,n=1,k=1 m=1,n=131,k=5 m=67,n=1,k=129 m=37,n=45,k=51 m=140,n=132,k=4 m=3,n=8,k=640 m=260,n=20,k=100 "
            "m=72,n=136,k=200 m=17,n=67,k=2056"
        ),
        lambda dim: dim["k"] + 1 + 6 * dim["scaled"],
        narrow=shapes(
            "m=1,n=1,k=2 m=1,n=131,k=6,scales=1,output=2 m=67,n=1,k=130,bias=1,output=1 "
            "m=37,n=46,k=52,batch=2,scales=1,bias=1,activation=1 m=140,n=132,k=4,output=2 "
            "m=3,n=8,k=640,scales=1,output=1 m=260,n=24,k=112,bias=1 "
            "m=72,n=136,k=208,batch=2,scales=1,bias=1,output=2 m=17,n=68,k=2056,scales=1"
        ),
        own={
            "matmul_wgmma": shapes(
                "m=1,n=8,k=16 m=70,n=72,k=80,bias=1 m=130,n=264,k=912 m=66,n=136,k=464,batch=2,bias=1,activation=1 "
                "m=130,n=704,k=32"
            ),
            "matmul_tcgen05": shapes(
                "m=1,n=8,k=16 m=70,n=72,k=80,bias=1 m=130,n=264,k=144 m=66,n=136,k=464,batch=2,bias=1,activation=1 "
                "m=130,n=520,k=32,batch=2"
            ),
        },
    ),
    "conv2d": Trial(
        shapes(
            "c=1,h=1,w=1,k=1,r=1,s=1 n=2,c=3,h=9,w=7,k=5,r=3,s=3,padding=1 c=8,h=6,w=6,k=36,r=3,s=3,padding=1 "
            "c=4,h=11,w=8,k=6,r=2,s=3,stride=2,padding=2 n=3,c=5,h=9,w=10,k=2,r=3,s=2,dilation=2 "
            "c=24,h=5,w=5,k=12,r=1,s=1,stride=2,groups=3 n=2,c=6,h=5,w=4,k=6,r=3,s=3,padding=1,groups=6 "
            "n=3,c=40,h=6,w=2,k=20,r=1,s=1 c=64,h=4,w=4,k=8,r=1,s=1,groups=2 c=28,h=3,w=5,k=3,r=3,s=3,padding=1 "
            "n=2,c=24,h=9,w=7,k=40,r=3,s=3,padding=1 c=8,h=5,w=36,k=8,r=3,s=3,stride=2,padding=1,groups=8 "
            "c=8,h=6,w=12,k=8,r=5,s=5,padding=2,groups=8 c=8,h=5,w=8,k=8,r=5,s=5,stride=2,padding=2,groups=8 "
            "c=8,h=7,w=8,k=8,r=7,s=7,padding=3,groups=8 c=8,h=7,w=8,k=64,r=2,s=2,groups=4"
        ),
        lambda dim: dim["c"] // dim["groups"] * dim["r"] * dim["s"] + 1,
    ),
    "matvec": Trial(
        shapes("m=1,k=1 m=5,k=3,n=2 m=67,k=129,n=3 m=33,k=520,n=16 m=70,k=264,n=5 m=3,k=16400 m=21,k=2056,n=9"),
        lambda dim: dim["k"],
    ),
    "softmax": Trial(_ROWS, lambda dim: dim["columns"] + 16, _of_softmax),
    "layernorm": Trial(_ROWS, lambda dim: dim["columns"] + 16, _of_layernorm),
    "rmsnorm": Trial(_ROWS, lambda dim: dim["columns"] + 16, _of_result),
    "reduce": Trial(_ROWS, lambda dim: dim["columns"] + 1),
    "transpose": Trial(
        shapes(
            "rows=1,columns=1 rows=1,columns=70 rows=131,columns=3 rows=37,columns=45 rows=72,columns=136 "
            "rows=264,columns=24"
        ),
        lambda dim: 0,
    ),
    "elementwise": Trial([{"n": n} for n in (1, 31, 1000, 4097, 20008, 70000)], lambda dim: 2),
}


@dataclass(frozen=True)
class Case:
    kernel: Kernel
    dtype: str
    layout: str
    sm: int

    def __str__(self) -> str:
        return f"{self.kernel.name}-{self.dtype}-{self.layout}-sm_{self.sm}"

    @property
    def thorough(self) -> bool:
        """True for the case of a kernel that must cover every value of every tunable. Other cases differ only in
        conversions and the order of loads."""
        first = self.kernel.dtypes[0], self.kernel.layouts[0], max(*ARCHITECTURES, self.kernel.least_sm(self.dtype))
        return (self.dtype, self.layout, self.sm) == first

    @property
    def least_codes(self) -> int:
        """Minimum number of compiled variants to run, if the kernel has that many."""
        return 8 if self.thorough else 3

    def step(self, problems: int) -> int:
        """Return n, so that each config runs every n-th of its problems."""
        if self.kernel.name in OPS[self.kernel.op].own or ELEMENT_BYTES[self.dtype] == 1:
            return 4
        return min(2 if self.thorough else 4, max(problems // 2, 1))

    @property
    def problems(self) -> list[Problem]:
        """Problems of the op that at least one config can run. Some kernels support only certain shapes."""
        return _problems(self)

    def fits(self, config: Config, problem: Problem) -> bool:
        return not self.kernel.misfit(config, problem, limits(self.sm))


def _cases(kernel: Kernel) -> Iterator[Case]:
    """Yield every dtype and layout of a kernel, alternating between architectures. A single case runs on both."""
    variants = list(product(kernel.dtypes, kernel.layouts))
    for i, (dtype, layout) in enumerate(variants):
        able = [sm for sm in reversed(ARCHITECTURES) if sm >= kernel.least_sm(dtype)] or [kernel.least_sm(dtype)]
        for sm in able if len(variants) == 1 else [able[i % len(able)]]:
            yield Case(kernel, dtype, layout, sm)


CASES = [case for kernel in all_kernels() if kernel.op in OPS for case in _cases(kernel)]


def per_case(*ops: str, tunable: str | None = None, without: str | None = None) -> pytest.MarkDecorator:
    """Parametrize a test with the cases of `ops` (default: all) whose kernels have `tunable` and lack `without`."""
    cases = [case for case in CASES if not ops or case.kernel.op in ops]
    cases = [case for case in cases if tunable is None or tunable in case.kernel.compile_time_tunables]
    cases = [case for case in cases if without is None or without not in case.kernel.compile_time_tunables]
    return pytest.mark.parametrize("case", [pytest.param(case, marks=_marks(case), id=str(case)) for case in cases])


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    if case.thorough:
        return [pytest.mark.every(2)]
    others = [other for other in CASES if other.kernel is case.kernel and not other.thorough]
    turn = all_kernels().index(case.kernel)
    return [pytest.mark.every(6) if others.index(case) == turn % len(others) else pytest.mark.deep]


@cache
def space(case: Case) -> Space:
    return Space(case.kernel, case.sm, limits(case.sm), case.dtype, case.layout)


@cache
def _problems(case: Case) -> list[Problem]:
    op = find_op(case.kernel.op)
    problems = [
        op.problem(dtype=case.dtype, layout=case.layout, **dims)
        for dims in OPS[op.name].dims(case.kernel.name, case.dtype)
    ]
    return [problem for problem in problems if space(case).at(problem).valid.any()]


def values(case: Case) -> set[tuple[str, int]]:
    return {(name, int(value)) for name, column in space(case).columns.items() for value in np.unique(column)}


def _extremes(case: Case, rows: np.ndarray) -> set[int]:
    """Return the rows of `rows` with the most threads, shared memory and registers. A thorough case also gets the rows
    with the fewest."""
    at_problem = space(case).at(case.problems[0])
    kernel = case.kernel
    expressions = [kernel.launches[0].threads, kernel.launches[0].shared, kernel.lets.get("registers")]
    extremes = set()
    for column in (at_problem.column(expression) for expression in expressions if expression):
        if isinstance(column, np.ndarray):
            extremes.add(int(rows[column[rows].argmax()]))
            if case.thorough:
                extremes.add(int(rows[column[rows].argmin()]))
    return extremes


@cache
def sample(case: Case) -> list[Config]:
    """Return configs that include the corners of the space (`_extremes`) and at least `case.least_codes` different
    codes, if there are that many. For a thorough case, they cover every value of every tunable."""
    configs = space(case)
    able = np.logical_or.reduce([configs.at(problem).valid for problem in case.problems])
    order = np.flatnonzero(able).tolist()
    random.Random(str(case)).shuffle(order)
    chosen = sorted(_extremes(case, np.array(order)))
    missing = {(name, int(value)) for name, column in configs.columns.items() for value in np.unique(column[able])}
    missing -= {item for row in chosen for item in configs.config(row).items()}
    if not case.thorough:
        missing.clear()
    while missing:
        # Add the config with the most values that `chosen` lacks. The shuffled order breaks ties.
        row = max(order, key=lambda row: len(missing.intersection(configs.config(row).items())))
        chosen.append(row)
        missing -= set(configs.config(row).items())
    codes = {int(configs.variants.index[row]): row for row in reversed(chosen)}
    for row in order:
        if len(codes) >= case.least_codes:
            break
        codes.setdefault(int(configs.variants.index[row]), row)
    return [configs.config(row) for row in codes.values()]


@cache
def runs(case: Case) -> list[Run]:
    """Return pairs of a sample config and a problem. Run-time tunables take turns with their values. Further pairs
    cover problems, and in a thorough case tunable values, that no earlier pair has."""
    codes = space(case).variants
    able = {problem: set(codes.index[space(case).at(problem).valid].tolist()) for problem in case.problems}
    turns: dict[Problem, list[Config]] = {problem: [] for problem in case.problems}
    for place, config in enumerate(sample(case)):
        code = codes.keys.index(case.kernel.variant_key(config, case.dtype, case.layout))
        mine = [problem for problem in case.problems if code in able[problem]]
        step = case.step(len(mine))
        for problem in mine[place % step :: step]:
            turns[problem].append(config)
    levers = [tunable for tunable in case.kernel.tunables if tunable.launch]
    names = [tunable.name for tunable in levers]
    settings = [dict(zip(names, setting, strict=True)) for setting in product(*(t.values for t in levers))]
    chosen: list[Run] = []
    for problem in case.problems:
        for config in turns[problem]:
            setting = next((s for s in settings if case.fits(config | s, problem)), None)
            if setting is not None:
                settings.remove(setting)
                settings.append(setting)
                chosen.append((config | setting, problem))
    return [*chosen, *_remaining(case, chosen)]


def _remaining(case: Case, chosen: list[Run]) -> Iterator[Run]:
    """Yield runs for the problems and values of tunables that are missing in `chosen`."""
    missing = values(case) - {item for config, _ in chosen for item in config.items()} if case.thorough else set()
    done = {problem for _, problem in chosen}
    for problem in case.problems:
        valid = space(case).at(problem).valid if missing or problem not in done else np.zeros(len(space(case)), bool)
        if problem not in done and valid.any():
            yield space(case).config(int(valid.argmax())), problem
        for name, value in sorted(missing):
            able = valid & (space(case).columns[name] == value)
            if able.any():
                missing.discard((name, value))
                yield space(case).config(int(able.argmax())), problem


def unwritten(problem: Problem) -> Tensors:
    """Return output tensors filled with NaN, the state before a kernel runs."""
    return {
        name: encode_elements(np.full(tensor.shape, np.nan), tensor.dtype)
        for name, tensor in problem.tensors.items()
        if tensor.role == "output"
    }


def execute(
    kernel: Kernel,
    config: Config,
    problem: Problem,
    sm: int,
    ptx: str,
    tensors: Tensors,
    *,
    check_races: bool = True,
    budget: int = 20_000_000,
) -> Tensors:
    """Fill the outputs with NaN, emulate a config's launches, and return the outputs. Raises `EmulationError` for an
    invalid access, a race, a deadlock or a write to an input. Errors are cached like outputs."""
    outputs = unwritten(problem)
    memory = {name: tensor.copy() for name, tensor in tensors.items()} | outputs
    launches = bind_launches(kernel, config, problem, sm), workspaces(kernel, config, problem, sm)

    def emulated() -> Tensors:
        emulate_config(
            kernel, config, problem, sm, parsed(ptx), memory, count=False, check_races=check_races, budget=budget
        )
        if any(memory[name].tobytes() != tensor.tobytes() for name, tensor in tensors.items()):
            raise EmulationError(f"{kernel.name} writes to an input")
        return outputs

    return cached_run(run_key(memory, ptx, launches, check_races, budget), emulated)


def run(case: Case, config: Config, problem: Problem, tensors: Tensors, budget: int = 20_000_000) -> Tensors:
    """Emulate a config, and return its outputs. Races are errors."""
    ptx = ptx_of(case.kernel, config, case.dtype, case.layout, case.sm)
    return execute(case.kernel, config, problem, case.sm, ptx, tensors, budget=budget)


def flaws(problem: Problem, operands: Tensors, outputs: Tensors) -> list[str]:
    """Report outputs that differ from float64 results by more than the rounding errors of f32 sums and of the dtype."""
    trial, faults = OPS[problem.op], []
    tensors = problem.tensors
    value = {name: decode_elements(tensor, tensors[name].dtype) for name, tensor in operands.items()}
    expected = reference(problem, operands)
    for name, got in outputs.items():
        dtype, bound = tensors[name].dtype, np.zeros(got.shape)
        if count := trial.roundings(problem.sizes):
            relative = count * 2.0**-24 + OPERANDS.get(problem.dtype, 0.0)
            bound = relative * trial.magnitude(problem, value, expected[name])
            bound += ROUNDING[dtype] * (np.abs(expected[name]) + bound) + LEAST[dtype]
        wrong = ~(np.abs(decode_elements(got, dtype) - expected[name]) <= bound) & np.isfinite(expected[name])
        if wrong.any():
            faults.append(f"{wrong.sum()} of {wrong.size} values of {name} are wrong on {problem.key}")
    return faults


def given_inputs(problem: Problem) -> Tensors:
    return inputs(problem, seed=problem.flops % 1000)
