"""Test that the benchmarks of `tools/bench.py` run as commands, on small inputs."""

import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT, TOOLS
from tests.helpers.process import environment

LITTLE: dict[str, tuple[str, ...]] = {
    "analyses": ("--rounds", "1", "--only", "nbody"),
    "cold": ("--rounds", "1", "--rows", "300"),
    "interpreter": ("--trips", "50", "--rounds", "1"),
    "many": ("--shapes", "20", "--gpu", "t4", "--only", "softmax"),
    "query": ("--shapes", "1", "--rounds", "1"),
    "store": ("--rows", "1000"),
}


def bench(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(TOOLS / "bench.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment())


def test_benchmarks_are_listed():
    assert {line.split()[0] for line in bench().stdout.splitlines()} == {*LITTLE}


@pytest.mark.slow
@pytest.mark.every(3)
@pytest.mark.parametrize("name", LITTLE)
def test_benchmark_prints_its_figures(name):
    done = bench(name, *LITTLE[name])
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1), done.stderr  # status 1: a busy machine missed an aim
    assert len(done.stdout.splitlines()) >= 2
