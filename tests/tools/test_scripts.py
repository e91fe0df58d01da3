"""Test the tools that build databases and run campaigns, as commands."""

import subprocess
import sys
from dataclasses import replace

import pytest

from kernrec.kernel import find_kernel
from kernrec.store import Database
from tests.helpers.paths import ROOT
from tests.helpers.recording import make_recording


def tool(name: str, *words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, f"tools/{name}.py", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize(("plan", "least"), [("broad", 40), ("truth", 8)])
def test_campaign_lists_each_problem_once(plan, least):
    keys = tool("campaign", plan, "--list").stdout.splitlines()
    assert len(keys) == len(set(keys)) >= least
    assert {key.partition("[")[0] for key in keys} >= {"matmul", "matvec", "conv2d"}


@pytest.mark.every(4)
def test_second_part_of_a_campaign_keeps_the_rows_of_the_first(tmp_path):
    recording = make_recording(tmp_path / "recording.duckdb", configs=20)
    logs, counts = [], []
    for machine in ("first", "second"):
        place = tmp_path / machine / "campaign.duckdb"  # each machine has its own database
        words = ("broad", "--out", tmp_path / "out", "--database", place, "--replay", recording, "--minutes", "2")
        done = tool("campaign", *words)
        assert done.returncode == 0, done.stderr
        logs.append(done.stdout)
        with Database.open(tmp_path / "out" / place.name) as stored:
            counts.append(stored.counts()["measurement"])
    assert counts[0] == counts[1] > 15
    assert f"{counts[0]} rows stored" in logs[0]
    assert f" 0 rows, {counts[0]} before" in logs[1]
    assert (tmp_path / "out" / "doctor.json").exists()


def test_profiles_of_unchanged_kernels_stay():
    done = tool("carry_profiles", "--from", "HEAD", "transpose_tiled")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_profiles_are_kept_only_if_comments_changed():
    from carry_profiles import carry

    kernel = find_kernel("transpose_tiled")
    changed = replace(kernel, source=f"{kernel.source} int x;")
    assert carry(changed, kernel) == 1
