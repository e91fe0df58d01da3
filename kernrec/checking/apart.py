"""Run a task on an untrusted source in a child process, and report its outcome in one line.

    parent: request.json and arrays in a folder -> child with limits (`kernrec.checking.worker`) -> result.json, arrays

A source that breaks the compiler or the emulator affects only the child.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernrec.checking.limits import PACKAGE, Limits
from kernrec.errors import KernrecError, UsageError
from kernrec.store.measurement import Outcome
from kernrec.util.light_dataclass import dataclass
from kernrec.util.process import kill_group, module_command, own_group

_INHERITED = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "CUDA_PATH", "CUDA_HOME", "LD_LIBRARY_PATH", "KERNREC_COUNTS")
"""Environment variables that the child inherits; others may contain secrets."""
_MOST_RESULT = 4 << 20


@dataclass(frozen=True)
class Ended:
    """Outcome of a task."""

    outcome: Outcome
    """Outcome; `ok` if the task finished and `result` holds its result."""
    message: str
    """Reason in one line why the task failed; empty if it succeeded."""
    result: dict[str, Any]


def run_apart(task: str, request: Mapping[str, Any], folder: Path, limits: Limits) -> Ended:
    """Run a task in a child process, within limits.

    Args:
        task: a task of the worker.
        request: request in JSON types; files of the folder hold arrays.
        folder: private folder of the task, the only one that the child can access.
        limits: limits of time, memory and sizes.

    Raises:
        UsageError: the request cannot be carried out.
        KernrecError: a required package is not installed.
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
        stdin=subprocess.PIPE,  # The pipe closes when this process ends, even after a crash.
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
        # The system killed the process, because it exceeded its time limit or ran out of memory.
        if status in (-getattr(signal, "SIGXCPU", 24), -getattr(signal, "SIGKILL", 9)):
            return Ended(Outcome.TIMEOUT, f"it takes longer than {limits.time_s:g} s of processor time", {})
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return Ended(Outcome.CRASH, f"it made the compiler or the emulator crash ({how})", {})
    if "misuse" in answer:
        raise UsageError(str(answer["misuse"]))
    if "missing" in answer:
        raise KernrecError(str(answer["missing"]))
    return Ended(Outcome(answer["outcome"]), str(answer.get("message", "")), answer.get("result", {}))
