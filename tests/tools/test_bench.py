"""The commands of `tools/bench.py` as people run them, on little; an emulator stands in for a card."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from on_gpu import NoGPUError, find_card

from tests.helpers.paths import ROOT, TOOLS
from tests.helpers.process import environment

LITTLE: dict[str, tuple[str, ...]] = {
    "cold": ("--rounds", "1"), "peer": ("--shapes-a-round", "1", "--rounds", "1"),
    "analyze": ("--configs", "2"), "networks": ("--shapes", "20", "--gpus", "t4,l4"),
    "store": ("--rows", "1000", "--columns", "all"), "share": ("--rows", "1000"), "profile": ("--variants", "0"),
    "index": ("--bundles", "2", "--people", "2"), "analyses": ("--rounds", "1", "--only", "nbody"),
}  # fmt: skip


def bench(*words: object, program: Path = TOOLS / "bench.py", **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment(**variables))


def test_the_commands_are_listed() -> None:
    names = {line.split()[0] for line in bench().stdout.splitlines()}
    assert names == {"cold", "kernels", "large-space", "launch", "page", "query", "training", *LITTLE}


@pytest.mark.slow
@pytest.mark.every(4)
@pytest.mark.parametrize("name", ["analyze", "networks", "store", "share", "index", "peer", "cold", "analyses"])
def test_a_benchmark_prints_its_figures(name: str) -> None:
    done = bench(name, *LITTLE[name])
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1), done.stderr  # 1: an aim is missed on a busy machine
    assert len(done.stdout.splitlines()) >= 2


def test_without_the_sources_the_large_space_says_so() -> None:
    done = bench("large-space")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert "--sources names a folder" in done.stdout


@pytest.mark.gpu
def test_on_a_card_a_kernel_is_checked(tmp_path: Path) -> None:
    try:
        find_card()
    except NoGPUError as error:
        pytest.skip(str(error))
    options = ["--op", "transpose", "--steps", "check", "--sample", "2", "--out", tmp_path / "out.json"]
    assert bench("kernels", *options).returncode == 0


@pytest.mark.slow
def test_kernels_are_timed_and_checked_once_and_the_broken_are_found(nvrtc: str, tmp_path: Path) -> None:
    emulated = ROOT / "tests" / "helpers" / "emulated_card.py"
    words = (
        "kernels",
        "--op",
        "transpose",
        "--sample",
        "2",
        "--only",
        "transpose_tiled,f16,row",
        "--out",
        tmp_path / "r.json",
    )
    done = bench(*words, "--steps", "check", program=emulated)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 configs, right" in done.stdout
    before = json.loads((tmp_path / "r.json").read_text())["NVIDIA H200"]["check"]
    assert bench(*words, "--steps", "check,once", program=emulated).returncode == 0
    assert json.loads((tmp_path / "r.json").read_text())["NVIDIA H200"]["check"] == before
    late = bench(*words[:-1], tmp_path / "late.json", "--steps", "check", "--minutes", "0", program=emulated)
    assert "0 of 2 configs" in late.stdout
    broken = (*words[:-1], tmp_path / "broken.json", "--steps", "check")
    done = bench(*broken, program=emulated, EMULATED_CARD_BROKEN="1")
    assert done.returncode == 1, done.stderr
    assert "WRONG: " in done.stdout
    (tmp_path / "r.json").write_text("not JSON")
    assert "is not a file of results" in bench(*words, "--steps", "check", program=emulated).stderr


def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = bench("kernels", "--op", "matmul")
    if done.returncode == 0:
        pytest.skip("there is a GPU here")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("kernels: no GPU can be used: ")
    assert "not verified" in done.stderr
