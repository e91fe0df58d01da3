"""Cache the emulator's errors for users' kernels on disk, so that a config that fails is not emulated again.

Profiles are stored in the database instead. The cache key of a launch contains everything that affects the error: the
kernel with its tensor files, the problem, the code, the launch, the instruction budget of a block, and the emulator's
sources.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import cache as once
from pathlib import Path

from kernrec import paths
from kernrec.compile.compiled import CompileCache
from kernrec.kernel import Kernel
from kernrec.op import Problem
from kernrec.util.files import files_hash, write_whole

_ROOT = Path(__file__).parents[1]
_MODULES = ("sample_profile", "cache_behavior", "tensor_values", "uneven_blocks")
"""Modules of this package that affect the counts and errors."""
_MACHINE_CODE = ("block_mix", "disassemble")
"""Modules of `kernrec.compile` that affect the counts."""


class ErrorCache:
    """Cached errors of one kernel on one problem, keyed by code and arguments."""

    def __init__(self, kernel: Kernel, problem: Problem, budget: int) -> None:
        self._folder = paths.cache() / "emulated"
        self._subject = (kernel.name, kernel.hash, problem.key, str(budget))

    def get(self, launch: Sequence[str]) -> str | None:
        """Return the cached error of a config's launches, or None if there is none.

        Args:
            launch: Cache key of the launches, which includes the hash of the PTX.
        """
        try:
            return self._path(launch).read_text(encoding="utf-8") or None
        except (OSError, ValueError):
            return None

    def put(self, launch: Sequence[str], error: str) -> None:
        """Cache the error of a config's launches under the key `launch`. If the folder is not writable, do nothing."""
        path = self._path(launch)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, error.encode())

    def _path(self, launch: Sequence[str]) -> Path:
        key = CompileCache.key("emulated", emulator_hash(), *self._subject, *launch)
        return self._folder / key[:2] / f"{key}.txt"


@once
def emulator_hash() -> str:
    """Return a hash of the sources that affect the emulator's counts and errors."""
    modules = [_ROOT / "profile" / f"{name}.py" for name in _MODULES]
    modules += [_ROOT / "compile" / f"{name}.py" for name in _MACHINE_CODE]
    return files_hash(_ROOT, [*(_ROOT / "ptx").rglob("*.py"), *modules])
