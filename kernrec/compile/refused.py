"""Launches that the emulator refused, remembered beside compiled code: asked again, nothing is executed again.

What the refusal depends on is all in its key: the code and how it is launched, the problem and the files that its
tensors come from, how far a block may go, and the emulator itself.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache as once
from pathlib import Path

from kernrec.compile.cache import CompileCache
from kernrec.compile.compiled import CompileError
from kernrec.kernel import Kernel
from kernrec.op import Problem

_ROOT = Path(__file__).parents[1]


class Refused:
    """What the emulator refused of one kernel on one problem, with its reasons, by whatever tells launches apart."""

    def __init__(self, kernel: Kernel, problem: Problem, folder: Path | None, budget: int) -> None:
        self._cache = CompileCache.default()
        samples = sorted((name, repr(sample)) for name, sample in kernel.samples.items())
        self._about = (kernel.name, problem.key, str(budget), repr(samples), *_files(kernel, folder or Path()))

    def get(self, launch: Sequence[str]) -> str | None:
        """Why a launch was refused; None for one that was not, as far as is known."""
        kept = self._cache.get(self._key(launch))
        return str(kept) if isinstance(kept, CompileError) else None

    def put(self, launch: Sequence[str], reason: str) -> None:
        """Remember a refusal."""
        self._cache.put(self._key(launch), CompileError(reason))

    def _key(self, launch: Sequence[str]) -> str:
        return CompileCache.key("emulated", emulator(), *self._about, *launch)


def _files(kernel: Kernel, folder: Path) -> Iterator[str]:
    """The state of each file that a tensor is read from."""
    for sample in kernel.samples.values():
        if sample.kind in ("file", "raw"):
            path = folder / sample.text
            state = path.stat() if path.exists() else None
            yield f"{path.resolve()} {(state.st_size, state.st_mtime_ns) if state else ''}"


@once
def emulator() -> str:
    """A hash of the sources that decide what the emulator refuses."""
    digest = hashlib.sha256()
    for path in [*sorted((_ROOT / "ptx").glob("*.py")), *(_ROOT / "compile" / f"{n}.py" for n in ("sample", "inputs"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
