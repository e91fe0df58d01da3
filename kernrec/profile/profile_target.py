"""Targets for profiling a user's kernel, and failing configs; imports no emulator."""

from pathlib import Path

from kernrec.kernel import Config
from kernrec.op import Problem
from kernrec.util.light_dataclass import dataclass

BLOCK_BUDGET = 20_000_000
"""Maximum number of PTX instructions of a block before it counts as an endless loop."""


@dataclass(frozen=True)
class ProfileTarget:
    """Problem and architecture for profiling a user's kernel."""

    problem: Problem
    sm: int
    """Compute capability that the kernel is compiled for."""
    folder: Path | None = None
    """Folder of the spec's `.npy` files."""
    budget: int = BLOCK_BUDGET
    """Maximum number of PTX instructions of a block before it counts as an endless loop."""


@dataclass(frozen=True)
class ProfileFailure:
    """Config that cannot be profiled."""

    config: Config
    message: str
    """Reason in one line."""
    stopped: bool = False
    """Whether time or memory limits stopped the compiler, which the source may cause for every config."""
