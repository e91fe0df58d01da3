"""Test `kernrec analyze` and `kernrec explain` on real sources and real PTX, and their one-line errors."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from kernrec.cli import analyze, app
from tests.helpers.command import run_here
from tests.helpers.paths import ROOT, beside
from tests.helpers.ptx_text import elementwise

pytestmark = pytest.mark.usefixtures("compiled_here")

COPY_PTX = elementwise("copy", "mov.f32 %f2, %f1")
ARGUMENTS = ["x=f32[1000000]", "y=f32[1000000]", "i32:1000000", "--grid", "7813", "--block", "128", "--gpu", "rtx4090"]
SCALE = """
extern "C" __global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
"""
SPEC = beside(__file__, "scale.toml", "refusals")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "copy.ptx").write_text(COPY_PTX)
    (tmp_path / "scale.cu").write_text(SCALE)
    (tmp_path / "scale.toml").write_text(SPEC)
    return tmp_path


@pytest.fixture
def run(folder, monkeypatch):
    """Return a function that runs one command line in an empty home directory."""
    monkeypatch.delenv("KERNREC_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "own"))
    return run_here


def test_ptx_file_gets_block_sizes_and_power_limits(folder, run):
    done = run("analyze", folder / "copy.ptx", *ARGUMENTS, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["candidates"] > 5
    assert len({recommendation["power_limit_w"] for recommendation in answer["recommendations"]}) > 1
    for recommendation in answer["recommendations"]:
        (launch,) = recommendation["launches"]
        assert launch["grid"][0] * launch["block"][0] >= 1_000_000
    assert "check the results with other blocks" in done.stderr


@pytest.mark.parametrize("target", ["sm_70", "sm_52"])
def test_ptx_for_older_architectures_can_be_analyzed_for_a_v100(folder, run, target):
    (folder / "copy.ptx").write_text(re.sub(r"sm_\d+", target, COPY_PTX))
    done = run("analyze", folder / "copy.ptx", *ARGUMENTS[:-1], "v100", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["recommendations"]


def test_source_can_be_analyzed_recommended_and_explained(folder, run):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    done = run("analyze", folder / "scale.cu", "--spec", folder / "scale.toml", "--gpu", "t4")
    assert done.returncode == 0, done.stderr
    assert "occupancy heuristic" in done.stdout
    assert "3 profiled now" in done.stderr
    again = run("recommend", "--kernel", "scale", "--gpu", "t4", "--json")
    assert json.loads(again.stdout)["candidates"] == 3
    explained = run("explain", "--kernel", "scale", "--gpu", "t4", "--config", "threads=64", "--against", "threads=256")
    assert explained.returncode == 0, explained.stderr
    assert "roofline" in explained.stdout
    assert "against threads=256" in explained.stdout


@pytest.mark.every(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.deep) for n in (signal.SIGTERM, signal.SIGHUP))]
)
def test_interrupted_analysis_reports_one_line_and_resumes(folder, number):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    values = list(range(32, 1025, 16 if number == signal.SIGINT else 4))
    (folder / "scale.toml").write_text(SPEC.replace("[64, 128, 256]", str(values)))
    on_one_cpu = ["taskset", "-c", "0"] if shutil.which("taskset") else []  # slow enough to interrupt
    command = [*on_one_cpu, sys.executable, "-m", "kernrec", "analyze", folder / "scale.cu"]
    command += ["--spec", folder / "scale.toml"]
    command += ["--gpu", "t4", "--db", folder / "own.duckdb", "--json"]
    env = os.environ | {"KERNREC_CACHE": str(folder / "cache")}
    process = subprocess.Popen(
        [*map(str, command)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # undoes nohup, which ignores SIGHUP
    )
    until = time.monotonic() + 60
    emulated = folder / "cache" / "emulated"
    while len(list(emulated.rglob("*.z"))) < 3 and time.monotonic() < until and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, number)  # a terminal signals the whole process group
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number, errors
    assert output == ""
    *progress, last = errors.splitlines()
    assert last == "kernrec: interrupted; finished work is kept. Run the same command to resume"
    assert all(line.startswith("scale: ") for line in progress), errors  # only slow machines print progress
    if number == signal.SIGINT:
        again = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, timeout=60, check=True)
        answer = json.loads(again.stdout)
        assert answer["cached"] > 0
        assert answer["profiled"] > 0
        assert answer["cached"] + answer["profiled"] == answer["candidates"] == len(values)


@pytest.mark.slow
def test_triton_function_is_analyzed_once_per_architecture(run, folder, monkeypatch):
    pytest.importorskip("triton", reason="needs the extra `triton`")
    (folder / "call.toml").write_text("""
        grid = ["ceil_div(m, BLOCK_M) * ceil_div(n, BLOCK_N)"]
        [arguments]
        a = { dtype = "f16", shape = ["m", "k"] }
        b = { dtype = "f16", shape = ["k", "n"] }
        c = { dtype = "f16", shape = ["m", "n"] }
        m = 512
        n = 512
        k = 256
        stride_a = 256
        stride_b = 512
        stride_c = 512
        [[configs]]
        BLOCK_M = 64
        BLOCK_N = 32
        BLOCK_K = 32
        GROUP_M = 4
        [[configs]]
        BLOCK_M = 64
        BLOCK_N = 64
        BLOCK_K = 128
        GROUP_M = 4
        num_stages = 8
    """)
    call = ("analyze", f"{ROOT}/datasets/kernels/triton/matmul.py:matmul", "--spec", folder / "call.toml", "--json")
    first = run(*call, "--gpu", "rtx3090")
    assert first.returncode == 0, first.stderr
    answer = json.loads(first.stdout)
    assert {recommendation["config"]["block_n"] for recommendation in answer["recommendations"]} == {32}
    (failure,) = answer["failed"]
    assert "bytes of shared memory a block; sm_86 has" in failure["message"]
    monkeypatch.setattr("kernrec.compile.pool.Processors.submit", None)  # any new emulation would fail
    again = json.loads(run(*call, "--gpu", "rtx3080").stdout)
    assert (again["profiled"], again["cached"]) == (0, 1)
    assert run("recommend", "--kernel", "matmul", "--gpu", "rtx3090").returncode == 0


LAUNCH = ("n=100000", "--grid", "ceil(n/THREADS)", "--block", "64,128")


def test_analysis_without_a_spec_writes_the_spec(folder, run):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    done = run("analyze", folder / "scale.cu", "--gpu", "t4", *LAUNCH, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["candidates"] == answer["profiled"] == 2
    assert answer["problem"] == "scale[n=100000]f32,any"
    assert "note: assumed: n elements in x, y" in done.stderr
    (folder / "scale.toml").unlink()
    assert run("analyze", folder / "scale.cu", *LAUNCH, "--init").returncode == 0
    again = json.loads(
        run("analyze", folder / "scale.cu", "--gpu", "t4", "--spec", folder / "scale.toml", "--json").stdout
    )
    assert (again["cached"], again["kernel_hash"]) == (2, answer["kernel_hash"])
    assert again["recommendations"][0] == answer["recommendations"][0]


def test_failed_analysis_of_a_call_names_the_gpu(tmp_path, run):
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls" / "a.toml").write_text("x = 1\n")
    done = run("analyze", tmp_path / "calls", "--gpu", "a100,l40s", "--json")
    assert done.returncode == 1
    assert [answer["gpu"] for answer in json.loads(done.stdout)] == ["a100", "l40s"]


def test_each_of_several_calls_is_measured(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(analyze, "_measure", lambda single, show: measured.append(single.source.name))
    (tmp_path / "calls").mkdir()
    for name in ("a.toml", "b.toml"):
        (tmp_path / "calls" / name).write_text("x = 1\n")
    assert app.run(["analyze", str(tmp_path / "calls"), "--gpu", "a100", "--measure"]) == 0
    assert measured == ["a.toml", "b.toml"]


def test_analyze_refuses_an_existing_or_incomplete_spec(folder, run):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    path = folder / "scale.toml"
    refused = run("analyze", folder / "scale.cu", "--init")
    assert refused.returncode == 2
    assert "scale.toml exists already; move it first" in refused.stderr
    assert path.read_text() == SPEC
    path.unlink()
    assert run("analyze", folder / "scale.cu", "--init").stdout == f"{path}\n"
    early = run("analyze", folder / "scale.cu", "--spec", path, "--gpu", "t4")
    assert early.returncode == 2
    assert 'replace each "?"' in early.stderr


@pytest.mark.parametrize(("arguments", "says"), [
    (("analyze", "scale.cu", "--gpu", "t4", *LAUNCH, "x=f32[n/2]"), "x"),
    (("analyze", "copy.ptx", "--init"), "--init is for .cu files without --spec"),
])  # fmt: skip
def test_missing_parts_of_a_spec_are_reported_in_one_line(folder, run, arguments, says):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    paths = [str(folder / a) if a.endswith((".cu", ".toml", ".ptx", ".txt")) else a for a in arguments]
    done = run(*paths)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert says in done.stderr
