"""Limit a process that runs untrusted code: time, memory and visible files.

On Linux, Landlock (https://docs.kernel.org/userspace-api/landlock.html) hides all files except those of Python, its
packages, the compiler and one folder, and blocks the network. Without Landlock (other systems, and Linux before 5.13),
the source's includes are still checked (`kernrec.compile.includes`).
"""

import math
import os
import sys
from pathlib import Path

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.util.light_dataclass import dataclass
from kernrec.util.process import confine

LAUNCH_BUDGET = 5_000_000
"""Number of PTX instructions of a batch of blocks (a few seconds) after which a kernel counts as an endless loop."""


@dataclass(frozen=True)
class Limits:
    """Limits of a check or an analysis."""

    time_s: float = 60.0
    """Processor time of each process in seconds."""
    memory_bytes: int = 4 << 30
    """Address space of each process in bytes."""
    source_bytes: int = 256 << 10
    tensor_bytes: int = 64 << 20
    """Total bytes of all arrays of a launch."""

    @property
    def wall_s(self) -> float:
        """Seconds after which a process is killed. It exceeds `time_s`, because other processes share the processor."""
        return 60.0 + 5.0 * self.time_s

    def __post_init__(self) -> None:
        if not (math.isfinite(self.time_s) and self.time_s > 0):
            raise UsageError(f"the time limit is {self.time_s:g} s; expected a positive time")
        if self.memory_bytes < 1 << 30:
            raise UsageError(
                f"the memory limit is {self.memory_bytes} bytes; Python and a compiler need at least 1 GiB"
            )


PACKAGE = Path(paths.__file__).resolve().parent


def limit_process(limits: Limits, folder: Path) -> bool:
    """Limit this process and its children permanently; return whether all other files are inaccessible.

    Args:
        limits: limits of time and memory.
        folder: the only folder that the process may write to.
    """
    if sys.platform == "win32":
        return False
    import resource

    seconds = math.ceil(limits.time_s)
    # NVRTC raises soft limits to the hard limits, so set the hard limits.
    for name, soft, most in (
        ("RLIMIT_CPU", seconds, seconds + 1),
        ("RLIMIT_AS", limits.memory_bytes, limits.memory_bytes),
        ("RLIMIT_FSIZE", 1 << 30, 1 << 30),
        ("RLIMIT_CORE", 0, 0),
    ):
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        hard = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            resource.setrlimit(kind, (min(soft, hard), hard))
        except (ValueError, OSError):
            continue  # macOS does not enforce a limit on the address space
    # Allow listing, but not reading, the package's parent folder, so that another process finds the package.
    return confine(_readable(), [folder, Path("/dev/shm"), Path("/dev/null")], [PACKAGE.parent])


def _readable() -> list[Path]:
    """Return the files that Python, NumPy, the compiler and kernrec read."""
    installed = [Path(place) for place in (sys.prefix, sys.base_prefix, os.path.realpath(sys.executable))]
    # Of the module search path, include only installed packages, not a checkout or home folder.
    installed += [Path(place) for place in sys.path if Path(place).name in ("site-packages", "dist-packages")]
    # DuckDB aborts if it cannot read the process's control group.
    system = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/sys/devices/system/cpu", "/sys/fs/cgroup")
    process = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/dev/urandom", "/dev/random")
    toolkit = [os.environ[name] for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    shipped = [paths.shipped(name) for name in ("db/schema", "db/prebuilt", "datasets/workloads")]
    return [PACKAGE, *shipped, *installed, *(Path(place) for place in (*system, *process, *toolkit))]
