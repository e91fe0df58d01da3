"""Damaged files of every format get an answer or one line."""

import subprocess
import sys

import pytest

from tests.helpers.depth import DEEP
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fuzzer bounds memory by /proc and rlimits")


@pytest.mark.slow
def test_no_damaged_file_ends_in_a_traceback() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "100" if DEEP else "1", "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" 0 failed") == len(done.stdout.splitlines()) >= 24
