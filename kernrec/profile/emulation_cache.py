"""Cache emulation results of users' kernels on disk, including errors, so that no launch runs twice.

The key contains everything that affects the counts: kernel, tensor files, problem, code, launch, instruction budget and
the emulator's sources. If instructions are counted in machine code, the key also contains the architecture, the
compiler and a hash of the cubin.
"""

import json
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache as once
from pathlib import Path
from typing import Any

import numpy as np

from kernrec import paths
from kernrec.compile.compiled import CompileCache, Compiled
from kernrec.errors import KernrecError
from kernrec.kernel import Kernel
from kernrec.op import Problem
from kernrec.profile.launch_profile import LaunchProfile, Profile, entry_name
from kernrec.util.engine import module
from kernrec.util.files import files_hash, write_whole

_ROOT = Path(__file__).parents[1]
_MODULES = ("sample_profile", "cache_behavior", "tensor_values", "uneven_blocks")
"""Modules of this package that affect the counts."""
_MACHINE_CODE = ("block_mix", "machine_code", "opcodes")
"""Modules of `kernrec.compile` that also affect the counts."""

Emulated = list[LaunchProfile] | str
"""Profiles of a config's launches, or an error message of the emulator."""


class EmulationCache:
    """Cached emulation results of one kernel on one problem."""

    def __init__(self, kernel: Kernel, problem: Problem, budget: int) -> None:
        self._folder = paths.cache() / "emulated"
        self._subject = (kernel.name, kernel.hash, problem.key, str(budget))

    def get(self, launch: Sequence[str], compiled: Compiled) -> Emulated | None:
        """Return the cached result of a config, or None. `launch` is a key that includes the hash of the PTX."""
        try:
            document = json.loads(zlib.decompress(self._path(launch).read_bytes()))
            if "refused" in document:
                return str(document["refused"])
            return [_restored(fields, compiled) for fields in document["launches"]]
        except (OSError, ValueError, KeyError, TypeError, zlib.error, KernrecError):
            return None

    def put(self, launch: Sequence[str], result: Emulated) -> None:
        """Cache a result. Do nothing if the folder is not writable."""
        document = {"refused": result} if isinstance(result, str) else {"launches": [_plain(p) for p in result]}
        path = self._path(launch)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, zlib.compress(json.dumps(document).encode(), level=3))

    def _path(self, launch: Sequence[str]) -> Path:
        key = CompileCache.key("emulated", emulator_hash(), *self._subject, *launch)
        return self._folder / key[:2] / f"{key}.z"


def _plain(profile: LaunchProfile) -> dict[str, object]:
    counts = profile.profile
    return {
        "launch": profile.launch,
        "entry": profile.entry,
        "metrics": counts.metrics,
        "terms": counts.terms,
        "counts": counts.coefficients.tolist(),
    }


def _restored(fields: dict[str, Any], compiled: Compiled) -> LaunchProfile:
    metrics, terms = tuple(map(str, fields["metrics"])), tuple(map(str, fields["terms"]))
    counts = np.array(fields["counts"], dtype=np.float64).reshape(len(metrics), len(terms))
    launch, entry = int(fields["launch"]), str(fields["entry"])
    resources = compiled.resources[entry_name(compiled.resources, entry)]
    profile = Profile(metrics, terms, counts)
    return LaunchProfile(launch, entry, resources, profile, compiled.ptx_hash, compiled.compiler)


@once
def emulator_hash() -> str:
    """Return a hash of the sources that affect the emulator's counts and errors."""
    modules = [_ROOT / "profile" / f"{name}.py" for name in _MODULES]
    modules += [_ROOT / "compile" / f"{name}.py" for name in _MACHINE_CODE]
    modules += (_ROOT / "ptx").rglob("*.py")
    # A confined process cannot read the engine's sources, but the engine's file name contains a hash of them.
    return CompileCache.key(files_hash(_ROOT, modules), Path(module().__file__).name)
