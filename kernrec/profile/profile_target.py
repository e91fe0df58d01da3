"""Targets of profiling a user's kernel, and configs that fail: a module that imports no emulator."""

from pathlib import Path

from kernrec.kernel import Config
from kernrec.op import Problem
from kernrec.util.light_dataclass import dataclass

BLOCK_BUDGET = 20_000_000
"""PTX instructions that one block may execute before it is taken for an endless loop."""


@dataclass(frozen=True)
class ProfileTarget:
    """The problem and architecture that configs of a user's kernel are profiled for."""

    problem: Problem
    sm: int
    """Compute capability that the kernel is compiled for."""
    folder: Path | None = None
    """Where the `.npy` files of the spec are."""
    budget: int = BLOCK_BUDGET
    """PTX instructions that one block may execute before it is taken for an endless loop."""


@dataclass(frozen=True)
class ProfileFailure:
    """A config that cannot be profiled."""

    config: Config
    message: str
    """The reason, in one line."""
    stopped: bool = False
    """Whether the limits of time and memory ended the compiler: the source may do so with every config."""
