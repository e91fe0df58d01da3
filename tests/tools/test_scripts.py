"""The tools that build and gather, as commands."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernrec.store import Database
from tests.helpers.paths import ROOT
from tests.helpers.recording import make_recording


def tool(name: str, *words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, f"tools/{name}.py", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize(("plan", "least"), [("broad", 40), ("truth", 8)])
def test_a_campaign_asks_for_every_problem_once_and_for_enough_of_them(plan: str, least: int) -> None:
    keys = tool("campaign", plan, "--list").stdout.splitlines()
    assert len(keys) == len(set(keys)) >= least
    assert {key.partition("[")[0] for key in keys} >= {"matmul", "matvec", "conv2d"}


def test_a_later_piece_of_a_campaign_takes_in_what_an_earlier_machine_left(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recording.duckdb", configs=20)
    logs, counts = [], []
    for machine in ("first", "second"):
        place = tmp_path / machine / "campaign.duckdb"  # of each machine; nothing but `--out` comes back from it
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


def test_what_kernels_lack_of_the_emulator_is_counted(tmp_path: Path) -> None:
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    whole = ".entry a(.param .u64 x) { .reg .b32 %r<3>; mov.u32 %r1, 1; add.s32 %r2, %r1, 1; ret; }\n"
    lacking = ".entry b() { .reg .b32 %r<3>; frob.s32 %r1, %r2; frob.s32 %r2, %r1; ret; }\n"
    (tmp_path / "two.ptx").write_text(head + whole + lacking)
    (tmp_path / "broken.ptx").write_text(head + ".entry c() { .frob x; }\n.entry d() { ret; }\n")
    out = tool("ptx_coverage", tmp_path, "--all").stdout
    assert "1 of 4 kernels decode in every instruction (25.0 %)" in out
    assert "two.ptx: b: frob.s32\n" in out
    assert "     1  frob.s32" in out
    assert "     2  parser: " in out
    assert tool("ptx_coverage", tmp_path / "none").returncode == 2


def test_profiles_of_an_unchanged_kernel_are_left_as_they_are(nvrtc: str) -> None:
    done = tool("carry_profiles", "--from", "HEAD", "transpose_tiled")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("comparing with")
