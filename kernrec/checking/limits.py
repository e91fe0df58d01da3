"""Limits of a process that runs a stranger's code: time, memory, and the files that it sees.

On Linux the kernel's Landlock (https://docs.kernel.org/userspace-api/landlock.html) takes every file from the process
but those of Python, its packages, the compiler and one folder, and the network. Where there is none (other systems, and
Linux before 5.13), what a source includes is checked all the same (`kernrec.checking.includes`).
"""

import ctypes
import math
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of a check or an analysis."""

    time_s: float = 60.0
    """Processor time of each process."""
    memory_bytes: int = 4 << 30
    """Address space of each process."""
    source_bytes: int = 256 << 10
    tensor_bytes: int = 64 << 20
    """Of all arrays of a launch together."""

    @property
    def wall_s(self) -> float:
        """Seconds after which a process is killed, whatever it does: others may have the processor."""
        return 60.0 + 5.0 * self.time_s

    def __post_init__(self) -> None:
        if not (math.isfinite(self.time_s) and self.time_s > 0):
            raise UsageError(f"a time limit of {self.time_s:g} s: a positive time is accepted")
        if self.memory_bytes < 1 << 30:
            raise UsageError(
                f"a memory limit of {self.memory_bytes} bytes: Python and a compiler need 1 GiB at the least"
            )


PACKAGE = Path(paths.__file__).resolve().parent

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
"""The rights that a rule about a file, not a folder, may give."""
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
"""By version of Landlock: all rights on files that it knows; version 5 adds control of devices."""
_NETWORK = 0b11  # bind and connect TCP, from version 4
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # system calls, of the same number on x86-64 and aarch64
_PR_SET_NO_NEW_PRIVS = 38


def limit_process(limits: Limits, folder: Path) -> bool:
    """Limits this process and all that it starts, for good. Whether files outside are out of its reach.

    Args:
        limits: of time and memory.
        folder: the only one that it may write to.
    """
    if sys.platform == "win32":
        return False
    import resource

    seconds = math.ceil(limits.time_s)
    # NVRTC raises the limits that it finds as far as it may, so the hard ones are what counts.
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
            continue  # macOS knows the address space but does not limit it
    return confine(_readable(), [folder, Path("/dev/shm"), Path("/dev/null")]) if sys.platform == "linux" else False


def _readable() -> list[Path]:
    """The files that Python, NumPy, the compiler and kernrec itself read."""
    installed = [Path(place) for place in (sys.prefix, sys.base_prefix, os.path.realpath(sys.executable))]
    # Of the module search path: what is installed, not the checkout or home folder that it may name, too.
    installed += [Path(place) for place in sys.path if Path(place).name in ("site-packages", "dist-packages")]
    # DuckDB ends the process where it may not read its control group.
    system = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/sys/devices/system/cpu", "/sys/fs/cgroup")
    process = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/dev/urandom", "/dev/random")
    toolkit = [os.environ[name] for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    shipped = [paths.shipped(name) for name in ("db/schema", "db/prebuilt", "datasets/workloads")]
    return [PACKAGE, *shipped, *installed, *(Path(place) for place in (*system, *process, *toolkit))]


def confine(readable: Iterable[Path], writable: Iterable[Path]) -> bool:
    """Takes every file from this process but these (folders with all below them), and TCP; whether it was done."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, 0, 1)
    if version < 1:
        return False
    rights = _RIGHTS[min(version, 3)]
    attributes = struct.pack("QQ", rights, _NETWORK) if version >= 4 else struct.pack("Q", rights)
    ruleset = libc.syscall(_CREATE, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    try:
        # Where the package is may be listed, so that another process can find it, but not read.
        for allowed, places in ((_READ, readable), (rights, writable), (_READ_DIR, [PACKAGE.parent])):
            for place in places:
                _allow(libc, ruleset, place, allowed & rights)
        return bool(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and libc.syscall(_RESTRICT, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, place: Path, rights: int) -> None:
    try:
        descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = rights if place.is_dir() else rights & _OF_FILES
        libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, descriptor), 0)
    finally:
        os.close(descriptor)
