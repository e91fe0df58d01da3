"""Test that the kernel tests detect bugs: copies of each kernel with one planted bug must fail.

In `mutants/<kernel>.toml`, `old` occurs exactly once in the kernel's source, including headers, and is replaced by
`new`. `when` selects configs that execute the broken code. `dtype`, `layout` and `sm` select the case (default: the
kernel's first dtype and layout on sm_86). A test in test_kernels.py must fail, or a run of the problem with `dims`.
Tables named `equivalent` are harmless changes with a reason (`why`). If another test file uses a kernel's mutants,
`tried_by` names the file, and the file defines all keys except `old` and `new`.
"""

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import kernrec.kernel
from kernrec.kernel import all_kernels, find_kernel
from kernrec.op import Problem, find_op
from kernrec.ptx import EmulationError
from tests.helpers.kernel_code import Config
from tests.helpers.products import broken
from tests.helpers.trial import Case, Run, flaws, given_inputs, run, runs, space
from tests.kernel.library.test_matmul_epilogue import BREAKS, CASES

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).with_name("mutants")
LEAST = 6
"""Minimum number of mutants per kernel."""
LEAST_OF_SKINNY = 4
"""Minimum number of mutants of matmul_skinny, which are in test_matmul_epilogue.py."""

BUDGET = 2_000_000
"""Maximum instructions per batch of blocks. Correct kernels need fewer."""


@dataclass(frozen=True)
class Mutant:
    """A kernel with one planted bug. The module's docstring explains the fields."""

    kernel: str
    breaks: str
    old: str
    new: str
    when: dict[str, int] = field(default_factory=dict)
    dtype: str | None = None
    layout: str | None = None
    sm: int = 86
    dims: dict[str, int] = field(default_factory=dict)
    why: str = ""

    def __str__(self) -> str:
        return f"{self.kernel}: {self.breaks}"

    @property
    def sound(self) -> Case:
        kernel = find_kernel(self.kernel)
        return Case(kernel, self.dtype or kernel.dtypes[0], self.layout or kernel.layouts[0], self.sm)

    @property
    def broken(self) -> Case:
        return dataclasses.replace(self.sound, kernel=broken(self.sound.kernel, self.old, self.new))

    def runs(self) -> list[Run]:
        """Return the test suite's runs that execute the broken code, grouped by compiled code. If the mutant defines a
        problem, return only the run of the first suitable config on it."""
        if self.dims:
            case = self.sound
            problem = find_op(case.kernel.op).problem(dtype=case.dtype, layout=case.layout, **self.dims)
            of_case = space(case)
            configs = (of_case.config(int(row)) for row in np.flatnonzero(of_case.at(problem).valid))
            return [(next(config for config in configs if self.when.items() <= config.items()), problem)]
        chosen = [(c, p) for c, p in runs(self.sound) if self.when.items() <= c.items()]
        order = list(dict.fromkeys(self.code(config) for config, _ in chosen))
        return sorted(chosen, key=lambda run: order.index(self.code(run[0])))

    def code(self, config: dict[str, int]) -> tuple[int, ...]:
        return tuple(config[name] for name in self.sound.kernel.compile_time_tunables)


FILES = {file.stem: tomllib.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.toml"))}
ELSEWHERE = {kernel: content["tried_by"] for kernel, content in FILES.items() if "tried_by" in content}
OWN_FILES = [(kernel, content) for kernel, content in FILES.items() if kernel not in ELSEWHERE]
MUTANTS, EQUIVALENT = (
    [Mutant(kernel, **fields) for kernel, content in OWN_FILES for fields in content.get(group, [])]
    for group in ("mutant", "equivalent")
)
OF_THEIR_OWN = list(
    {(m.kernel, *m.when.items(), *m.dims.items()): m for m in [*MUTANTS, *EQUIVALENT] if m.dims}.values()
)
"""One mutant for each problem that is defined by mutants (`dims`)."""


def noticed(mutant: Mutant) -> bool:
    return any(fails(mutant.broken, config, problem) for config, problem in mutant.runs())


def fails(case: Case, config: Config, problem: Problem) -> bool:
    operands = given_inputs(problem)
    try:
        outputs = run(case, config, problem, operands, budget=BUDGET)
    except EmulationError:
        return True
    return bool(flaws(problem, operands, outputs))


@pytest.mark.parametrize("kernel", all_kernels(), ids=lambda kernel: kernel.name)
def test_mutation_tests_cover_every_kernel(kernel):
    if kernel.name in ELSEWHERE:
        text = FOLDER.with_name(ELSEWHERE[kernel.name]).read_text(encoding="utf-8")
        assert kernel.name in text
        assert "def test_suite_detects_an_error_inserted_in_the_kernel(" in text
    if kernel.name == "matmul_skinny":
        assert sum(CASES[number][0] == kernel.name for number, *_ in BREAKS) >= LEAST_OF_SKINNY
    else:
        assert len(FILES[kernel.name]["mutant"]) >= LEAST, f"mutants/{kernel.name}.toml has too few"


def test_mutation_tests_cover_every_kernel_header():
    folder = Path(kernrec.kernel.__file__).with_name("library")
    for header in folder.glob("*.cuh"):
        users = [k.name for k in all_kernels() if f'"{header.name}"' in (folder / k.name / k.source_name).read_text()]
        if not ELSEWHERE.keys() & users:
            assert any(mutant.old in header.read_text() for mutant in MUTANTS), header.name


@pytest.mark.every(12)
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_suite_detects_each_inserted_kernel_error(mutant):
    assert mutant.runs(), f"no run of the suite has {mutant.when}"
    assert noticed(mutant)


@pytest.mark.every(12)  # no run stops early, so these tests are slow
@pytest.mark.parametrize("mutant", EQUIVALENT, ids=str)
def test_harmless_kernel_change_passes_the_tests(mutant):
    assert mutant.why
    assert mutant.runs(), f"no run of the suite has {mutant.when}"
    assert not noticed(mutant)


@pytest.mark.every(3)
@pytest.mark.parametrize("mutant", OF_THEIR_OWN, ids=str)
def test_correct_kernel_passes_the_problem_of_each_mutation_test(mutant):
    [(config, problem)] = mutant.runs()
    assert not fails(mutant.sound, config, problem)
