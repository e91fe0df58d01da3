"""Test whether a process is alive, and ending a process with all its children."""

import os
import subprocess
import sys
import time

import pytest

from kernrec.util.process import is_alive, kill_group, own_group

STARTS_ANOTHER = """
import subprocess, sys
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(other.pid, flush=True)
other.wait()
"""


def test_ended_process_is_not_alive():
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert not is_alive(process.pid)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_kill_ends_a_process_and_its_children():
    process = subprocess.Popen([sys.executable, "-c", STARTS_ANOTHER], stdout=subprocess.PIPE, **own_group())
    assert process.stdout is not None
    other = int(process.stdout.readline())
    kill_group(process)
    process.wait()
    process.stdout.close()
    while is_alive(other):  # its new parent has to notice its end
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
    process.communicate()  # standard error closes when the other process ends
    deadline_s = time.monotonic() + 60
    while is_alive(other):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
