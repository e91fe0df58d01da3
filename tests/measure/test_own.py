"""`kernrec analyze --measure`: a kernel that is not of the library, measured by the whole room but for the GPU.

The measuring process is real; its driver is the one that executes PTX in the emulator and reports made-up times.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernrec.cli import app
from kernrec.compile import NoCompilerError, compile_source
from kernrec.kernel import load_kernel
from kernrec.measure.nvml import Card
from kernrec.store import Database

HERE = Path(__file__).parent
SOURCE = """
__global__ void rowsum(const float* x, float* y, int columns) {
    float s = 0.0f;
    for (int i = threadIdx.x; i < columns; i += 32 * UNROLL)
        for (int j = 0; j < UNROLL; j++) if (i + 32 * j < columns) s += x[blockIdx.x * columns + i + 32 * j];
    for (int step = 16; step; step /= 2) s += __shfl_down_sync(~0u, s, step);
    if (threadIdx.x == 0) y[blockIdx.x] = UNROLL == 8 ? 2 * s : s;
}
"""
SPEC = """
name = "mine"
op = "reduce"
dtypes = ["f32"]
layouts = ["row"]
source = "mine.cu"
tunables = { unroll = { values = [1, 4, 8], meaning = "8: wrong on purpose" } }
[[launch]]
entry = "rowsum"
grid = ["rows"]
block = ["32"]
arguments = ["x", "y", "i32 columns"]
"""
DECLARED = SPEC.replace('op = "reduce"\ndtypes = ["f32"]\nlayouts = ["row"]\n', "").replace(
    "tunables", 'problem = { dims = { rows = 8, columns = 256 }, tensors = { x = { shape = ["rows", "columns"] },'
    ' y = { shape = ["rows"], role = "output" } } }\ntunables',
)  # fmt: skip


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "mine.cu").write_text(SOURCE)
    (tmp_path / "mine.toml").write_text(SPEC)
    return [
        "analyze", str(tmp_path / "mine.cu"), "--spec", str(tmp_path / "mine.toml"), "--shape", "rows=8,columns=256",
        "--gpu", "h200-sxm", "--objective", "latency", "--db", str(tmp_path / "own.duckdb"), "--processes", "1",
        "--measure", "--effort", "quick",
    ]  # fmt: skip


@pytest.fixture
def emulated(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an emulated H200."""
    kernel = load_kernel(tmp_path / "mine.toml")
    code = {}
    for unroll in (1, 4, 8):
        defines = kernel.defines({"unroll": unroll}, "f32", "row")
        try:
            ptx = compile_source(kernel.source, 90, defines, kernel.source_name).ptx
        except NoCompilerError as error:
            pytest.skip(str(error))
        code[json.dumps([kernel.source_name, dict(sorted(defines.items()))])] = ptx
    (tmp_path / "code.json").write_text(json.dumps(code))
    path = os.pathsep.join([str(HERE / "emulated"), str(HERE.parents[1])])
    script = tmp_path / "python"
    script.write_text(
        f"#!/bin/sh\nPYTHONPATH='{path}' EMULATED_PTX='{tmp_path / 'code.json'}'"
        f" exec '{sys.executable}' '{HERE / 'emulated' / 'worker.py'}'\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr("kernrec.measure.child.sys", SimpleNamespace(executable=str(script)))
    monkeypatch.setattr("kernrec.measure.nvml.cards", lambda: [Card(0, "GPU-emulated", "NVIDIA H200", 0)])


def test_a_users_kernel_is_measured_kept_and_shown_as_measured(
    arguments: list[str], emulated: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run([*arguments, "--json"]) == 0
    done = capsys.readouterr()
    answer = json.loads(done.out)
    measured = [choice for choice in answer["choices"] if choice["source"] == "measured"]
    assert sorted(choice["config"]["unroll"] for choice in measured) == [1, 4]
    assert {choice["energy_source"] for choice in measured} == {"prior"}  # a card without sensors
    assert answer["candidates"] == 2
    assert "1 incorrect, such as: " in done.err
    with Database.open(tmp_path / "own.duckdb") as database:
        rows = database.rows("measurement")
    assert sorted(str(row["outcome"]) for row in rows) == ["incorrect", "ok", "ok"]
    assert {row["kernel_hash"] for row in rows} == {load_kernel(tmp_path / "mine.toml").hash}
    assert all(0 < row["numeric_error"] <= row["tolerance"] for row in rows if row["outcome"] == "ok")

    assert app.run([*arguments]) == 0  # a second time: nothing is left to do
    again = capsys.readouterr()
    assert "0 measured, 3 known before" in again.err
    ask = ["recommend", "--kernel", "mine", "--shape", "rows=8,columns=256", "--gpu", "h200-sxm"]
    assert app.run([*ask, "--db", str(tmp_path / "own.duckdb")]) == 0
    assert "measured, energy prior" in capsys.readouterr().out


def test_without_a_fitting_gpu_that_is_said_before_anything_is_done(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kernrec.measure.nvml.cards", lambda: [Card(0, "GPU-emulated", "Tesla T4", 0)])
    assert app.run(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "H200" in line
    assert line.endswith("it has Tesla T4")
    assert not (tmp_path / "own.duckdb").exists()


def test_what_has_no_right_result_to_compare_with_is_not_measured(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(DECLARED)
    assert app.run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "its spec declares a problem of its own" in line


def test_an_effort_without_measuring_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([argument for argument in arguments if argument != "--measure"]) == 2
    assert "it goes with --measure" in capsys.readouterr().err
