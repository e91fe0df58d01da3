"""Test that damaged files of every format, and hostile rows, give an answer or a one-line error."""

import subprocess
import sys

import pytest

from tests.fuzz.rows import attack
from tests.helpers.depth import DEEP
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fuzzer bounds memory by /proc and rlimits")


@pytest.mark.every(6)
@pytest.mark.slow
def test_damaged_file_never_causes_a_traceback():
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "100" if DEEP else "1", "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" 0 failed") == len(done.stdout.splitlines()) >= 24


@pytest.mark.every(4)
@pytest.mark.slow
def test_altered_row_with_a_valid_hash_never_changes_an_answer():
    tried = attack(100_000 if DEEP else 1000, batch=10_000, seed=7)
    assert not tried.wrong
    assert 0 < tried.taken < tried.rows
    assert len(tried.refused) > 50
