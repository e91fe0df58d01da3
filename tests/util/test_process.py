"""Test that a process is ended with all its children."""

import os
import subprocess
import sys
import time

import pytest

from kernrec.util.process import kill_group, own_group
from tests.helpers.command import environment, is_alive

STARTS_ANOTHER = """
import subprocess, sys
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(other.pid, flush=True)
other.wait()
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_kill_ends_a_process_and_its_children():
    process = subprocess.Popen([sys.executable, "-c", STARTS_ANOTHER], stdout=subprocess.PIPE, **own_group())
    assert process.stdout is not None
    other = int(process.stdout.readline())
    kill_group(process)
    process.wait()
    process.stdout.close()
    while is_alive(other):  # until the system removes the killed process
        time.sleep(0.01)
    kill_group(process)  # ending a finished process is no error


NEVER_ENDS = """
import io, json, sys, time
from kernrec.compile.triton_process import answer_request

def endless(request):
    print("endless", file=sys.stderr, flush=True)
    time.sleep(600)

sys.stdin = io.StringIO(json.dumps({"name": "endless.py"}))
answer_request(endless)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process does not learn of its parent's end")
def test_endless_user_code_ends_with_its_killed_parent():
    starts = STARTS_ANOTHER.replace('"import time; time.sleep(600)"', repr(NEVER_ENDS))
    process = subprocess.Popen([sys.executable, "-c", starts], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    other = int(process.stdout.readline())
    assert process.stderr.readline() == b"endless\n"
    process.kill()
    process.communicate()  # returns once both processes have ended
    deadline_s = time.monotonic() + 60
    while is_alive(other):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is forked")

IMPORTS = "import ctypes, os, signal, sys, threading, time\nfrom multiprocessing import Pipe\n"
IMPORTS += "from kernrec.util.process import can_fork, holds_no_lock, not_inherited, settle, start_context\n"
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


def test_threads_of_c_libraries_prevent_forking():
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
