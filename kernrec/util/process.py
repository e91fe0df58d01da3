"""Check, start and kill processes on every platform, including all processes that a child started."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_SYNCHRONIZE = 0x00100000
_WAIT_TIMEOUT = 0x102
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
"""https://learn.microsoft.com/windows/win32/api/synchapi/nf-synchapi-waitforsingleobject"""


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package in a child process.

    The child imports nothing from the working folder (`-P`), because a `json.py` next to a user's data must not run.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


@contextmanager
def safe_path() -> Iterator[None]:
    """While the `with` block runs, prevent new Python processes from importing from the working folder."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("PYTHONSAFEPATH", None)
        else:
            os.environ["PYTHONSAFEPATH"] = before


def module_environment() -> dict[str, str]:
    """Return the environment of a child that runs `module_command`, wherever this package is installed."""
    root = str(Path(__file__).resolve().parents[2])
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # An empty path means the working folder.
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, *places]))}


def own_group() -> dict[str, Any]:
    """Return arguments of `subprocess.Popen` for a separate process group, so that Ctrl-C does not reach the child."""
    if os.name == "nt":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}  # type: ignore[attr-defined]
    return {"start_new_session": True}


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that was started with `own_group`; on POSIX, also kill all processes that it started."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def end_with_parent() -> None:
    """Let the system kill this process when its parent ends, because nobody then needs its answer (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Return whether a process with this number exists."""
    if pid <= 0:
        return False
    if os.name == "nt":  # On Windows, `os.kill` would end the process.
        kernel32: Any = ctypes.windll.kernel32  # type: ignore[attr-defined]
        handle = kernel32.OpenProcess(_SYNCHRONIZE, False, pid)
        if not handle:
            return False
        try:
            return bool(kernel32.WaitForSingleObject(handle, 0) == _WAIT_TIMEOUT)
        finally:
            kernel32.CloseHandle(handle)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
