"""Whether a process is alive, and the end of a process with all that it started."""

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


def test_this_process_is_alive_and_no_number_below_one_is() -> None:
    assert is_alive(os.getpid())
    assert not is_alive(0)
    assert not is_alive(-1)


def test_a_process_that_has_ended_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert not is_alive(process.pid)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_a_process_is_killed_with_what_it_started() -> None:
    process = subprocess.Popen([sys.executable, "-c", STARTS_ANOTHER], stdout=subprocess.PIPE, **own_group())
    assert process.stdout is not None
    other = int(process.stdout.readline())
    kill_group(process)
    process.wait()
    process.stdout.close()
    while is_alive(other):  # its new parent has to notice its end
        time.sleep(0.01)
    kill_group(process)  # one that is gone is no error
