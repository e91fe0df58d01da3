"""Test that processes fork only where no lock can be lost."""

import subprocess
import sys

import pytest

from tests.helpers.command import environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is forked")

IMPORTS = "import ctypes, os, signal, sys, threading, time\nfrom multiprocessing import Pipe\n"
IMPORTS += "from kernrec.util.fork import can_fork, holds_no_lock, not_inherited, settle, start_context\n"
BESIDE = "thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)\nthread.start()\n"


def printed(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS + code], capture_output=True, text=True, env=environment(), check=True
    )
    return done.stdout.strip()


def test_single_threaded_process_forks():
    assert printed("print(start_context().get_start_method())") == "fork"


def test_multithreaded_process_forks_only_if_its_threads_hold_no_lock():
    assert printed(BESIDE + "print(can_fork())\nholds_no_lock(thread)\nprint(can_fork())") == "False\nTrue"


def test_library_threads_count():
    code = """
started = ctypes.c_ulong()
libc = ctypes.CDLL(None)
libc.pthread_create(ctypes.byref(started), None, ctypes.cast(libc.pause, ctypes.c_void_p), None)
print(can_fork(), threading.active_count())
os._exit(sys.stdout.flush() or 0)
"""
    assert printed(code) == "False 1"


def test_fork_outside_the_main_thread_is_refused():
    code = "thread = threading.Thread(target=lambda: print(can_fork()))\nholds_no_lock(thread)\nthread.start()"
    assert printed(code) == "False"


def test_child_keeps_no_handlers_or_connections_of_its_parent():
    code = """
def child(theirs):
    settle()
    theirs.send((signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, ours.closed))
ours, theirs = Pipe()
not_inherited(ours)
signal.signal(signal.SIGTERM, lambda *_: None)
process = start_context().Process(target=child, args=(theirs,))
process.start()
print(type(process).__name__, *ours.recv())
process.join()
"""
    assert printed(code) == "ForkProcess True True"
