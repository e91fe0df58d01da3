"""The tests of the kernels have teeth: of every kernel, copies with one thing broken do not pass its own runs.

`mutants/<kernel>.toml` says what to break: `old` occurs exactly once in the kernel's source, headers included, and
becomes `new`; `when` says what the configs have that meet the broken place, and `dtype`, `layout` and `sm` which case,
where it is not the kernel's first dtype and layout on sm_86. A mutant counts as noticed where one of the runs of
test_kernels.py computes a wrong result, leaves a result unwritten, races, accesses memory out of bounds, deadlocks or
does not end.

A kernel whose own test file breaks copies of it says so instead: `tried_by = "test_attention.py"`.
"""

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import kernrec.kernel
from kernrec.kernel import all_kernels, find_kernel
from kernrec.ptx import EmulationError
from tests.helpers.trial import Case, Run, flaws, given_inputs, run, runs

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).with_name("mutants")
LEAST = 6
"""Mutants of a kernel."""

BUDGET = 2_000_000
"""Instructions of a batch of blocks; the runs of the sound kernels need less."""


@dataclass(frozen=True)
class Mutant:
    """One thing broken in a kernel; see this module's description."""

    kernel: str
    breaks: str
    old: str
    new: str
    when: dict[str, int] = field(default_factory=dict)
    dtype: str | None = None
    layout: str | None = None
    sm: int = 86

    def __str__(self) -> str:
        return f"{self.kernel}: {self.breaks}"

    @property
    def sound(self) -> Case:
        kernel = find_kernel(self.kernel)
        return Case(kernel, self.dtype or kernel.dtypes[0], self.layout or kernel.layouts[0], self.sm)

    @property
    def broken(self) -> Case:
        sound = self.sound
        source = sound.kernel.source.replace(self.old, self.new)
        return dataclasses.replace(sound, kernel=dataclasses.replace(sound.kernel, source=source))

    def runs(self) -> list[Run]:
        """The suite's runs of the configs that meet the broken place, a code after the other."""
        chosen = [(c, p) for c, p in runs(self.sound) if self.when.items() <= c.items()]
        order = list(dict.fromkeys(self.code(config) for config, _ in chosen))
        return sorted(chosen, key=lambda run: order.index(self.code(run[0])))

    def code(self, config: dict[str, int]) -> tuple[int, ...]:
        return tuple(config[name] for name in self.sound.kernel.compile_time_tunables)


FILES = {file.stem: tomllib.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.toml"))}
ELSEWHERE = {kernel: content["tried_by"] for kernel, content in FILES.items() if "tried_by" in content}
MUTANTS = [
    Mutant(kernel, **given)
    for kernel, content in FILES.items()
    if kernel not in ELSEWHERE
    for given in content["mutant"]
]


def noticed(mutant: Mutant) -> bool:
    """Whether one of the suite's runs of a mutant fails."""
    broken = mutant.broken
    for config, problem in mutant.runs():
        given = given_inputs(problem)
        try:
            outputs = run(broken, config, problem, given, budget=BUDGET)
        except EmulationError:
            return True
        if flaws(problem, given, outputs):
            return True
    return False


@pytest.mark.parametrize("kernel", all_kernels(), ids=lambda kernel: kernel.name)
def test_every_kernel_has_mutants(kernel) -> None:
    if kernel.name in ELSEWHERE:
        text = FOLDER.with_name(ELSEWHERE[kernel.name]).read_text(encoding="utf-8")
        assert kernel.name in text
        assert "def test_breaking_one_thing_in_the_source_is_noticed(" in text
        return
    assert sum(mutant.kernel == kernel.name for mutant in MUTANTS) >= LEAST, f"mutants/{kernel.name}.toml has too few"


def test_every_header_has_mutants() -> None:
    folder = Path(kernrec.kernel.__file__).with_name("library")
    for header in folder.glob("*.cuh"):
        users = [k.name for k in all_kernels() if f'"{header.name}"' in (folder / k.name / k.source_name).read_text()]
        if not ELSEWHERE.keys() & users:
            assert any(mutant.old in header.read_text() for mutant in MUTANTS), header.name


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_changes_one_place_of_the_source(mutant: Mutant) -> None:
    assert mutant.sound.kernel.source.count(mutant.old) == 1, f"{mutant.old!r} must occur once"


@pytest.mark.every(6)
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_noticed(mutant: Mutant) -> None:
    assert mutant.runs(), f"no run of the suite has {mutant.when}"
    assert noticed(mutant)
