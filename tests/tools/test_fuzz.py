"""Damaged files of every text format get an answer or one line."""

import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fuzzer bounds memory by /proc and rlimits")


def test_no_damaged_file_ends_in_a_traceback() -> None:
    command = [sys.executable, "tools/fuzz.py", "--cases", "100", "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" 0 failed") == len(done.stdout.splitlines()) >= 8


def test_an_unknown_format_is_named() -> None:
    command = [sys.executable, "tools/fuzz.py", "--formats", "pdf"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown format pdf, known are ptx, expression" in done.stderr
