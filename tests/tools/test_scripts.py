"""The tools that build and gather, as commands: nothing is lost or doubled, and what is missing is said."""

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


def test_what_is_exported_and_imported_is_what_was_there(tmp_path: Path) -> None:
    database, folder = make_recording(tmp_path / "r.duckdb", 30), tmp_path / "measured"
    assert "rtx3090.matmul.parquet: 30 rows" in tool("measured", "export", database, folder).stdout
    assert tool("measured", "import", folder, tmp_path / "k.duckdb").stdout.startswith("30 rows are new")
    assert tool("measured", "import", folder, tmp_path / "k.duckdb").stdout.startswith("0 rows are new")
    with Database.open(database) as first, Database.open(tmp_path / "k.duckdb") as second:
        assert first.content_hash() == second.content_hash()
        assert second.altered() == []


def test_a_file_of_measurements_only_grows_and_each_gpu_has_its_own(tmp_path: Path) -> None:
    database, folder = make_recording(tmp_path / "r.duckdb", 30), tmp_path / "measured"
    tool("measured", "export", database, folder)
    other = make_recording(tmp_path / "other.duckdb", 10)
    make_recording(other, 10, "rtx4090")
    grown, new = tool("measured", "export", other, folder).stdout.splitlines()
    assert int(grown.split()[-2]) >= 30
    assert "rtx4090.matmul.parquet: 10 rows" in new


def test_a_folder_without_measurements_is_one_line(tmp_path: Path) -> None:
    done = tool("measured", "import", tmp_path, tmp_path / "k.duckdb")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "there are no measurements in" in done.stderr


@pytest.mark.parametrize(("plan", "least"), [("broad", 40), ("truth", 8)])
def test_a_campaign_asks_for_every_problem_once_and_for_enough_of_them(plan: str, least: int) -> None:
    keys = tool("campaign", plan, "--list").stdout.splitlines()
    assert len(keys) == len(set(keys)) >= least
    assert {key.partition("[")[0] for key in keys} >= {"matmul", "matvec", "conv2d"}


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
