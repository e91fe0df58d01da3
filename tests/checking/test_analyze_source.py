"""Test that `analyze_source` gives the answer of `kernrec.analyze`, in a separate process or in the caller's."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

import kernrec
from kernrec.checking.analyze_source import SourceAnalysis, analyze_source
from kernrec.checking.child_process import Limits
from kernrec.cli import app
from kernrec.recommender.request import Query
from tests.checking.test_check import AXPY
from tests.helpers.needs import needs

pytest.importorskip("cupy", reason="needs the extra cuda13")

ARGUMENTS = ["f32:2", "x=f32[100000]", "y=f32[100000]", "i32:100000"]


@pytest.mark.every(3)
@pytest.mark.slow
def test_analysis_in_a_separate_process_gives_the_same_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_DB", str(tmp_path / "own.duckdb"))  # the analysis stores a profile in this database
    wanted = SourceAnalysis(AXPY, "rtx4090", arguments=ARGUMENTS, grid=[391], block=[256], query=Query(l2="warm"))
    apart = analyze_source(wanted)
    arguments = {"alpha": 2.0, "x": np.zeros(100_000, np.float32), "y": np.zeros(100_000, np.float32), "n": 100_000}
    own = kernrec.analyze(AXPY, "rtx4090", arguments, [391], block=[256], l2="warm")
    assert apart["recommendations"][0]["latency_s"] == own.answer.best.latency_s.value
    assert apart["bottleneck" if "bottleneck" in apart else "explanation"]
    assert apart["explanation"]["what_to_do"]
    assert apart["l2"] == "warm"


def test_oversized_source_or_file_name_is_refused(refuses):
    inputs = {"source": AXPY, "gpu": "rtx4090", "arguments": ARGUMENTS}
    refuses(lambda changed: analyze_source(SourceAnalysis(**inputs | changed)), [
        {"source": '#include "/etc/passwd"'}, {"gpu": "h2000"}, {"arguments": ["x=@/etc/passwd"]},
        {"arguments": ["x=texture:@/etc/passwd"]}, {"arguments": ["x=f32[99999999999]"]},
        {"spec": 'x = { values = "raw /etc/passwd" }'}, {"source": ".version 8.0", "spec": "name = 1"},
    ])  # fmt: skip


def test_compile_error_is_reported_in_one_line(refuses):
    refuses(lambda: analyze_source(SourceAnalysis("__global__ void f() { nothing(); }", "t4"), Limits(time_s=30)))


def test_source_file_name_is_not_mistaken_for_a_function(refuses):
    refuses(lambda file: kernrec.analyze(file, "t4", {"n": 1}, [1]), ["axpy.cu", Path("folder/axpy.ptx")])


pytestmark = [pytest.mark.usefixtures("compiled_here", "nvrtc"), needs("tree_sitter_cuda")]


SLOW = tomllib.loads(Path(__file__).with_name("slow.toml").read_text())["slow"]


@pytest.mark.every(6)
@pytest.mark.parametrize("slow", SLOW, ids=[slow["name"] for slow in SLOW])
def test_slowest_line_is_reported_first(slow, tmp_path, capsys):
    source = f"#include <stdio.h>\n\n{slow['kernel']}\nint main() {{ {slow['launch']} }}\n"
    (path := tmp_path / "slow.cu").write_text(source)
    assert app.run(["explain", str(path), "--gpu", "a100", "--db", str(tmp_path / "own.duckdb"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["lines"], answer["what_to_do"]
    first = answer["lines"][0]
    assert first["problem"].startswith(slow["problem"]), answer["lines"]
    assert first["speedup"] > 1
    lines = [number for number, text in enumerate(source.splitlines(), 1) if "// SLOW" in text]
    assert not lines or first["line"] == lines[0], first
    assert "power limit" not in answer["what_to_do"]


def test_explain_assumes_sizes_missing_from_the_source_file(tmp_path, capsys):
    (path := tmp_path / "scale.cu").write_text(
        "__global__ void scale(float *x, int n) {\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i * 5]++; }"
    )
    command = ["explain", str(path), "--gpu", "a100", "--db", str(tmp_path / "own.duckdb")]
    assert app.run(command) == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert 'assumed x=f32[8388608], --grid "ceil(n/block_x)", n=1048576, which the file does not state' in printed
    assert "to change a value, add it to the command note: assumed" in printed
    assert "note: assumed: blocks 64, 128, 256, 512" in printed
    # The launch accesses 21 MB, which fit in the 40 MB of an A100's L2.
    assert app.run([*command, "--l2", "warm"]) == 0
    assert "roofline: all data in L2" in capsys.readouterr().out
    for block in (64, 32, 64):  # The database still contains the profiles of the earlier launches.
        assert app.run([*command, "n=4096", "--block", str(block)]) == 0
        assert f"scale: {4096 // block} blocks of {block} threads" in capsys.readouterr().out
    path.write_text("__global__ void all(float *x) { __shared__ float y[4]; y[threadIdx.x] = 1; x[0] = y[1]; }")
    assert app.run(command) == 2
    assert "correct them in: kernrec analyze" in capsys.readouterr().err
    assert app.run(["explain", str(tmp_path), "--gpu", "a100"]) == 2
    assert "is a folder; explain takes a .cu file" in capsys.readouterr().err
