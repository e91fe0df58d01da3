"""Start, confine and kill child processes on every platform, and decide whether to fork them.

A forked child inherits all imports but only one thread, so a lock that another thread holds is never released. So a
process with other threads spawns its children instead. Landlock (Linux since 5.13) permanently denies access to files
and the network (https://docs.kernel.org/userspace-api/landlock.html).
"""

import ctypes
import gc
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache as once
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, SpawnContext

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a kernrec module in a child process, which imports nothing from the working
    folder."""
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    # Drop empty paths, which would mean the working folder.
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, *places]))}


def own_group() -> dict[str, Any]:
    """Return the arguments of `subprocess.Popen` for a child in its own process group. Ctrl-C does not reach the
    child."""
    if os.name == "nt":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}  # type: ignore[attr-defined]
    return {"start_new_session": True}


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that was started with `own_group`. On POSIX, also kill its children."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def run_in_group(
    command: Sequence[str], request: bytes, limit_s: float | None, environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command in its own process group, with `request` as standard input, and return its outputs.

    At the end, all processes that the command started are killed.

    Raises:
        subprocess.TimeoutExpired: the command runs for more than `limit_s` seconds. Its processes are killed.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, **own_group()) as process:
        try:
            output, errors = process.communicate(request, limit_s)
        finally:
            kill_group(process)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def limit_resources(**limits: tuple[int, int]) -> None:
    """Limit resources of this process and its children, except on Windows.

    Args:
        limits: soft and hard limit of each resource, keyed by its name without `RLIMIT_`.
    """
    if sys.platform == "win32":
        return
    import resource

    for name, (soft, most) in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        hard = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(ValueError, OSError):  # macOS does not enforce a limit on the address space.
            resource.setrlimit(kind, (min(soft, hard), hard))


_lockless: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
_not_inherited: "weakref.WeakSet[object]" = weakref.WeakSet()


def holds_no_lock(thread: threading.Thread) -> None:
    """Declare that `thread` holds no lock during a fork, so that `can_fork` ignores this thread."""
    _lockless.add(thread)


def not_inherited(connection: object) -> None:
    """Close a connection in forked children, so that the other end notices when this process closes it."""
    _not_inherited.add(connection)


def can_fork() -> bool:
    """Return whether forking is safe: on Linux, in the main thread, if no other thread may hold a lock."""
    if not hasattr(os, "fork") or sys.platform != "linux":
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    try:
        running = len(os.listdir("/proc/self/task"))
    except OSError:
        return False
    return running == len(others) + 1 and all(thread in _lockless for thread in others)


def start_context() -> "ForkContext | SpawnContext":
    """Return the multiprocessing context for child processes."""
    return multiprocessing.get_context("fork") if can_fork() else multiprocessing.get_context("spawn")


def settle() -> None:
    """Prepare a forked child to end with its parent, reset its signal handlers, and close inherited connections."""
    parent = multiprocessing.parent_process()
    if parent is None or type(multiprocessing.current_process()).__name__ != "ForkProcess":
        return
    end_with_parent()
    if os.getppid() != parent.pid:  # The parent has already ended.
        os._exit(1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for connection in list(_not_inherited):
        with suppress(OSError):
            connection.close()  # type: ignore[attr-defined]


_Result = TypeVar("_Result")

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
"""Landlock rights that apply to single files, not only to folders."""
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
"""Bit mask of all file rights of each Landlock version, without rights for devices."""
_NETWORK = 0b11  # Landlock controls binding and connecting TCP sockets since version 4.
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # Numbers of the system calls on both x86-64 and aarch64.
_PR_SET_NO_NEW_PRIVS = 38


def confine(readable: Iterable[Path], writable: Iterable[Path], listed: Iterable[Path] = ()) -> bool:
    """Permanently deny this thread TCP connections, and access to all files except the given files.

    Args:
        readable: files, and folders with all their content, that stay readable.
        writable: files, and folders with all their content, that stay readable and writable.
        listed: folders whose file names can still be listed.

    Returns:
        Whether the restrictions apply, which requires Landlock.
    """
    if sys.platform != "linux":
        return False
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
        for allowed, places in ((_READ, readable), (rights, writable), (_READ_DIR, listed)):
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


def run_confined(work: Callable[[], _Result], readable: Iterable[Path], writable: Iterable[Path] = ()) -> _Result:
    """Run a function in a thread that can access only the given files. Return its result or raise its exception.

    Without Landlock, the function runs without restrictions.

    Args:
        readable: files and folders that the function can read.
        writable: files and folders that the function can read and write.
    """
    if sys.platform != "linux":
        return work()
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            confine(readable, writable)
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


# By default, Python collects garbage after 700 new objects. Cached analyses of PTX are many objects that stay in use.
_COLLECT_AFTER = 100_000
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in malloc.h
_KEPT_BYTES = 2**30


@once
def collect_rarely() -> None:
    """Make garbage collection rarer, and exclude all objects that exist now, such as modules."""
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 10, 10)


@once
def keep_freed() -> None:
    """Make the GNU C library keep freed memory. Otherwise, NVRTC requests the same memory again for every config."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
