"""Launches that the emulator refused, kept beside compiled code: asked for again, they are not executed again.

The key of a failure holds all that it depends on: the kernel with the files of its tensors, the problem, the code and
its launch, the instruction budget of a block, and the emulator's own sources.
"""

import hashlib
from collections.abc import Sequence
from functools import cache as once
from pathlib import Path

from kernrec.compile.cache import CompileCache
from kernrec.compile.compiled import CompileError
from kernrec.kernel import Kernel
from kernrec.op import Problem

_ROOT = Path(__file__).parents[1]
_MODULES = ("sample_profile", "cache_behavior", "tensor_values")  # of this room: what is emulated, and what is counted


class FailureCache:
    """The launches of one kernel on one problem that the emulator refused, with its reasons."""

    def __init__(self, kernel: Kernel, problem: Problem, budget: int) -> None:
        """`budget`: instructions that a block may execute."""
        self._cache = CompileCache.default()
        self._subject = (kernel.name, kernel.hash, problem.key, str(budget))

    def get(self, launch: Sequence[str]) -> str | None:
        """Why the launch with this key was refused; None where that is not known."""
        result = self._cache.get(self._key(launch))
        return str(result) if isinstance(result, CompileError) else None

    def put(self, launch: Sequence[str], reason: str) -> None:
        """Keeps a failure."""
        self._cache.put(self._key(launch), CompileError(reason))

    def _key(self, launch: Sequence[str]) -> str:
        return CompileCache.key("emulated", emulator_hash(), *self._subject, *launch)


@once
def emulator_hash() -> str:
    """A hash of the sources that decide what the emulator refuses."""
    digest = hashlib.sha256()
    for path in [
        *sorted((_ROOT / "ptx").rglob("*.py")),
        *(_ROOT / "profile" / f"{name}.py" for name in _MODULES),
    ]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
