"""Run a task on an untrusted source in a child process with limits, and report its outcome in one line.

Parent and child (`kernrec.checking.worker`) exchange `request.json`, `result.json` and arrays in a folder.
"""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernrec import paths
from kernrec.errors import KernrecError, UsageError
from kernrec.store.measurement import Outcome
from kernrec.util.light_dataclass import dataclass
from kernrec.util.process import confine, kill_group, limit_resources, module_command, own_group

LAUNCH_BUDGET = 5_000_000
"""PTX instructions that a batch of thread blocks may execute. The emulator needs a few seconds for this number."""


@dataclass(frozen=True)
class Limits:
    """Limits for checking or analyzing a source."""

    time_s: float = 60.0
    """Maximum CPU time of each process in seconds."""
    memory_bytes: int = 4 << 30
    """Maximum address space of each process in bytes."""
    source_bytes: int = 256 << 10
    tensor_bytes: int = 64 << 20
    """Maximum size of all arrays of a launch, in bytes."""

    @property
    def wall_s(self) -> float:
        """Return the maximum wall time of a process in seconds. A process may have to wait for a busy CPU."""
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
    """Limit time, memory and file access of this process and its children permanently.

    Return False if the system cannot restrict file access to reading required files and writing to `folder`.
    """
    seconds = math.ceil(limits.time_s)
    # Set the hard limits, too, because NVRTC raises its soft limits to them.
    limit_resources(CPU=(seconds, seconds + 1), AS=(limits.memory_bytes,) * 2, FSIZE=(1 << 30, 1 << 30), CORE=(0, 0))
    # Let another Python process find this package: allow listing the parent folder, but not reading its files.
    return confine(_readable(), [folder, Path("/dev/shm"), Path("/dev/null")], [PACKAGE.parent])


def _readable() -> list[Path]:
    """Return the files and folders that Python, NumPy, the compiler and kernrec need to read."""
    installed = [Path(place) for place in (sys.prefix, sys.base_prefix, os.path.realpath(sys.executable))]
    # `sys.path` may also contain a checkout or a home folder, which the process must not read.
    installed += [Path(place) for place in sys.path if Path(place).name in ("site-packages", "dist-packages")]
    # DuckDB aborts if it cannot read the process's control group.
    system = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/sys/devices/system/cpu", "/sys/fs/cgroup")
    process = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/dev/urandom", "/dev/random")
    toolkit = [os.environ[name] for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    shipped = [paths.shipped(name) for name in ("db/schema", "db/prebuilt", "datasets/workloads")]
    return [PACKAGE, *shipped, *installed, *(Path(place) for place in (*system, *process, *toolkit))]


_INHERITED = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "CUDA_PATH", "CUDA_HOME", "LD_LIBRARY_PATH", "KERNREC_COUNTS")
"""Environment variables that the child process gets. Other variables may contain secrets."""
_MOST_RESULT = 4 << 20


@dataclass(frozen=True)
class Ended:
    """Result of a child process."""

    outcome: Outcome
    """`ok`, or the kind of failure. A failure has no `result`."""
    message: str
    """Reason for a failure in one line, or an empty string."""
    result: dict[str, Any]


def run_apart(task: str, request: Mapping[str, Any], folder: Path, limits: Limits) -> Ended:
    """Run a task of the worker in a child process with limits.

    Args:
        request: Arguments of the task, as JSON values. Arrays are in files in the folder.
        folder: Private folder of the task. The child process can write only to it.

    Raises:
        UsageError: The request is not valid.
        KernrecError: A required package is not installed.
    """
    asked_for = {"task": task, "limits": vars(limits), **request}
    (folder / "request.json").write_text(json.dumps(asked_for), encoding="utf-8")
    places = [str(PACKAGE.parent), *(place for place in sys.path if "-packages" in place)]
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | {
        "PYTHONPATH": os.pathsep.join(places),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "XDG_DATA_HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "KERNREC_CACHE": str(folder / "cache"),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        module_command("kernrec.checking.worker", str(folder)),
        cwd=folder,
        stdin=subprocess.PIPE,  # If this process ends or crashes, the child sees the pipe close.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        **own_group(),
    )
    try:
        process.wait(limits.wall_s)
    except subprocess.TimeoutExpired:
        return Ended(Outcome.TIMEOUT, f"it takes longer than {limits.wall_s:g} s", {})
    finally:
        kill_group(process)
        process.communicate()
    return _ended(process.returncode, folder / "result.json", limits)


def _ended(status: int, file: Path, limits: Limits) -> Ended:
    try:
        if file.stat().st_size > _MOST_RESULT:
            return Ended(Outcome.CRASH, f"its result is larger than {_MOST_RESULT} bytes", {})
        answer = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # The system killed the process because it exceeded its time limit or ran out of memory.
        if status in (-getattr(signal, "SIGXCPU", 24), -getattr(signal, "SIGKILL", 9)):
            return Ended(Outcome.TIMEOUT, f"it takes longer than {limits.time_s:g} s of processor time", {})
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return Ended(Outcome.CRASH, f"it made the compiler or the emulator crash ({how})", {})
    if "misuse" in answer:
        raise UsageError(str(answer["misuse"]))
    if "missing" in answer:
        raise KernrecError(str(answer["missing"]))
    return Ended(Outcome(answer["outcome"]), str(answer.get("message", "")), answer.get("result", {}))


_NAME = "array."
"""Prefix of array names in a file, which distinguishes them from parameters of `numpy.savez`."""


def save_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to an .npz file."""
    named: dict[str, Any] = {_NAME + name: array for name, array in arrays.items()}
    np.savez(file, **named)


def load_arrays(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays in a file that `save_arrays` wrote."""
    with np.load(file, allow_pickle=False) as content:
        return {name.removeprefix(_NAME): content[name] for name in content.files}
