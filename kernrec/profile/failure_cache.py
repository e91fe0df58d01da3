"""Launches that the emulator refused, remembered beside compiled code: asked again, nothing is executed again.

What a refusal depends on is all in its key: the kernel with the files of its tensors, the problem, the code and how it
is launched, how far a block may go, and the emulator itself.
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


class Refused:
    """What the emulator refused of one kernel on one problem, with its reasons, by whatever tells launches apart."""

    def __init__(self, kernel: Kernel, problem: Problem, budget: int) -> None:
        self._cache = CompileCache.default()
        self._about = (kernel.name, kernel.hash, problem.key, str(budget))

    def get(self, launch: Sequence[str]) -> str | None:
        """Why a launch was refused; None for one that was not, as far as is known."""
        kept = self._cache.get(self._key(launch))
        return str(kept) if isinstance(kept, CompileError) else None

    def put(self, launch: Sequence[str], reason: str) -> None:
        """Remember a refusal."""
        self._cache.put(self._key(launch), CompileError(reason))

    def _key(self, launch: Sequence[str]) -> str:
        return CompileCache.key("emulated", emulator(), *self._about, *launch)


@once
def emulator() -> str:
    """A hash of the sources that decide what the emulator refuses."""
    digest = hashlib.sha256()
    for path in [
        *sorted((_ROOT / "ptx").rglob("*.py")),
        *(_ROOT / "profile" / f"{name}.py" for name in ("sample_profile", "tensor_values")),
    ]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
