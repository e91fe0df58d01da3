"""`kernrec analyze` and `kernrec explain` as people run them: real sources, real PTX, one line for what cannot be."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kernrec.cli import app
from tests.helpers.needs import needs
from tests.helpers.paths import ROOT
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
SPEC = """
name = "scale"
source = "scale.cu"
problem = { dims = { n = 100000 }, tensors = { x = { shape = ["n"] }, y = { shape = ["n"], role = "output" } } }
tunables = { threads = { values = [64, 128, 256] } }
[[launch]]
entry = "scale"
grid = ["ceil_div(n, threads)"]
block = ["threads"]
arguments = ["x", "y", "i32 n"]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "copy.ptx").write_text(COPY_PTX)
    (tmp_path / "scale.cu").write_text(SCALE)
    (tmp_path / "scale.toml").write_text(SPEC)
    return tmp_path


@dataclass(frozen=True)
class Done:
    """The status and output of a command."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """Runs one command line in a home of its own."""
    monkeypatch.delenv("KERNREC_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "own"))

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        status = app.run([str(argument) for argument in arguments])
        return Done(status, *capsys.readouterr())

    return call


def test_ptx_file_gets_block_sizes_and_power_limits(folder, run):
    done = run("analyze", folder / "copy.ptx", *ARGUMENTS, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["candidates"] > 5
    assert len({choice["power_limit_w"] for choice in answer["choices"]}) > 1
    for choice in answer["choices"]:
        (launch,) = choice["launches"]
        assert launch["grid"][0] * launch["block"][0] >= 1_000_000
    assert "check the results with other blocks" in done.stderr


@pytest.mark.parametrize("target", ["sm_70", "sm_52"])
def test_ptx_for_older_architectures_can_be_analyzed_for_a_v100(folder, run, target):
    (folder / "copy.ptx").write_text(re.sub(r"sm_\d+", target, COPY_PTX))
    done = run("analyze", folder / "copy.ptx", *ARGUMENTS[:-1], "v100", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["choices"]


def test_ptx_that_never_reads_its_block_size_has_one_candidate(folder, run):
    (folder / "copy.ptx").write_text(COPY_PTX.replace("mov.u32 %r2, %ntid.x", "mov.u32 %r2, 128"))
    done = run("analyze", folder / "copy.ptx", *ARGUMENTS, "--json")
    assert json.loads(done.stdout)["candidates"] == 1
    assert "never reads the size of its block" in done.stderr


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.deep) for n in (signal.SIGTERM, signal.SIGHUP))]
)
def test_interrupted_analysis_reports_one_line_and_resumes(folder, number):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    values = list(range(32, 1025, 32 if number == signal.SIGINT else 4))
    (folder / "scale.toml").write_text(SPEC.replace("[64, 128, 256]", str(values)))
    on_one_cpu = ["taskset", "-c", "0"] if shutil.which("taskset") else []  # else most are done before the signal
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
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # under nohup a hang-up is ignored
    )
    until = time.monotonic() + 60
    while len(list((folder / "cache").rglob("*.z"))) < 10 and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, number)  # all of them get it, as from a terminal
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number, errors
    assert output == ""
    *progress, last = errors.splitlines()
    assert last == "kernrec: interrupted; what is done is kept, the same command goes on from there"
    assert all(line.startswith("scale: ") for line in progress), errors  # a slow machine says how far it is
    if number == signal.SIGINT:
        again = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, timeout=60, check=True)
        answer = json.loads(again.stdout)
        assert answer["cached"] > 0
        assert answer["profiled"] > 0
        assert answer["cached"] + answer["profiled"] == answer["candidates"] == len(values)


def test_t1_file_is_accepted_as_a_spec(folder, run):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    vector = {"Type": "float", "MemoryType": "Vector", "Size": 100_000}
    t1 = {
        "ConfigurationSpace": {"TuningParameters": [{"Name": "THREADS", "Type": "int", "Values": "[64, 2**7]"}]},
        "KernelSpecification": {
            "Language": "CUDA",
            "CompilerOptions": ["-maxrregcount=32"],
            "KernelName": "scale",
            "KernelFile": "scale.cu",
            "GlobalSize": {"X": "math.ceil(100000 / THREADS)"},
            "LocalSize": {"X": "THREADS"},
            "Arguments": [
                {"Name": "x", "AccessType": "ReadOnly", **vector},
                {"Name": "y", "AccessType": "WriteOnly", **vector},
                {"Name": "n", "Type": "int32", "MemoryType": "Scalar", "FillValue": 100_000},
            ],
        },
    }
    (folder / "scale.json").write_text(json.dumps(t1))
    done = run("analyze", folder / "scale.cu", "--spec", folder / "scale.json", "--gpu", "t4", "--json")
    assert json.loads(done.stdout)["candidates"] == 2, done.stderr
    assert "'-maxrregcount=32' was ignored" in done.stderr


TRITON = "datasets/kernels/triton/matmul.py"


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
    call = ("analyze", f"{ROOT}/{TRITON}:matmul", "--spec", folder / "call.toml", "--json")
    first = run(*call, "--gpu", "rtx3090")
    assert first.returncode == 0, first.stderr
    answer = json.loads(first.stdout)
    assert {choice["config"]["block_n"] for choice in answer["choices"]} == {32}
    (failure,) = answer["failed"]
    assert "bytes of shared memory a block; sm_86 has" in failure["message"]
    monkeypatch.setattr("kernrec.compile.pool.LocalProcessors.submit", None)  # nothing is emulated again
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
    assert again["choices"][0] == answer["choices"][0]


def test_csv_of_a_sweep_lists_every_block_size(folder, run):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    (folder / "scale.cu").write_text(SCALE.replace("THREADS", "blockDim.x"))
    launch = ("n=100000", "--grid", "ceil(n/block_x)", "--block", "64,128,256,512")
    done = run("analyze", folder / "scale.cu", "--gpu", "t4", *launch, "--objective", "latency")
    assert "alike" in done.stdout  # the table merges blocks of equal cost
    question = ("recommend", "--kernel", "scale", "--gpu", "t4", "--objective", "latency", "--top", "99")
    blocks = sorted(f"block_x={n}" for n in (64, 128, 256, 512))
    rows = list(csv.DictReader(io.StringIO(run(*question, "--format", "csv").stdout)))
    assert sorted(row["config"] for row in rows) == blocks
    choices = json.loads(run(*question, "--json").stdout)["choices"]
    assert sorted(f"block_x={choice['config']['block_x']}" for choice in choices) == blocks


def test_impossible_launch_reports_the_reason(folder, run):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    values = " ".join(f"float v{i} = x[{i} * n];" for i in range(160))
    total = " + ".join(f"v{i} * v{i * 7 % 160}" for i in range(160))
    body = f"{values} __syncthreads(); y[blockIdx.x * blockDim.x + threadIdx.x] = {total};"
    (folder / "scale.cu").write_text(f'extern "C" __global__ void scale(const float* x, float* y, int n) {{ {body} }}')
    launch = ("n=1024", "x=f32[n*160]", "y=f32[65536]", "--grid", "64")
    question = ("analyze", folder / "scale.cu", "--gpu", "t4", *launch)
    both = run(*question, "--block", "64,1024")
    assert both.returncode == 0, both.stderr
    assert "1 config cannot be launched, such as block_x=1024: a block of 1024 threads with 1" in both.stderr
    alone = run(*question, "--block", "1024")
    assert alone.returncode == 1
    assert (
        "does not fit an SM as it was compiled; __launch_bounds__(1024) makes the compiler keep to it" in alone.stderr
    )


def test_kernel_without_tunables_can_be_analyzed_recommended_and_explained(folder, run):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    launch = ("n=100000", "--grid", "ceil(n/128)", "--block", "128")
    (folder / "scale.cu").write_text(SCALE.replace("THREADS", "128"))
    done = run("analyze", folder / "scale.cu", "--gpu", "t4", *launch)
    assert done.returncode == 0, done.stderr
    assert "(nothing to tune)" in done.stdout
    assert "note: 1 config: 1 profiled now" in done.stderr
    assert run("recommend", "--kernel", "scale", "--gpu", "t4").returncode == 0
    explained = run("explain", "--kernel", "scale", "--gpu", "t4")
    assert explained.returncode == 0, explained.stderr
    assert "occupancy" in explained.stdout


def test_skeleton_spec_keeps_an_existing_spec_and_must_be_completed(folder, run):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    path = folder / "scale.toml"
    refused = run("analyze", folder / "scale.cu", "--init")
    assert refused.returncode == 2
    assert "scale.toml is there already; move it away" in refused.stderr
    assert path.read_text() == SPEC
    path.unlink()
    assert run("analyze", folder / "scale.cu", "--init").stdout == f"{path}\n"
    early = run("analyze", folder / "scale.cu", "--spec", path, "--gpu", "t4")
    assert early.returncode == 2
    assert 'fill in what is "?"' in early.stderr


@pytest.mark.parametrize(("arguments", "says"), [
    (("analyze", "scale.cu", "--gpu", "t4"), 'needs --grid, such as --grid "ceil(n/block_x)"; n=NUMBER'),
    (("analyze", "scale.cu", "--gpu", "t4", *LAUNCH, "x=f32[n/2]"), "x"),
    (("analyze", "copy.ptx", "--init"), "--init writes the spec of a .cu file"),
])  # fmt: skip
def test_missing_parts_of_a_spec_are_reported_in_one_line(folder, run, arguments, says):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    paths = [str(folder / a) if a.endswith((".cu", ".toml", ".ptx", ".txt")) else a for a in arguments]
    done = run(*paths)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert says in done.stderr


def test_assumed_size_that_is_too_small_is_reported(folder, run):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    (folder / "scale.cu").write_text(SCALE.replace("x[i]", "x[3 * i]"))
    done = run("analyze", folder / "scale.cu", "--gpu", "t4", *LAUNCH)
    assert done.returncode != 0
    assert "(assumed: n elements in x, y; an argument states it)" in done.stderr.splitlines()[-1]


@needs("xgboost")
def test_recorded_effort_profiles_the_measured_configs(folder, run):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    recorded = folder / "recorded.duckdb"
    (folder / "rows.csv").write_text("threads,time_ms\n256,0.02\n64,0.03\n")
    spec = ("--spec", folder / "scale.toml")
    added = run(
        "db", "import", folder / "rows.csv", "--kernel", folder / "scale.cu", *spec, "--gpu", "t4", "--db", recorded
    )
    assert added.returncode == 0, added.stderr
    train = run("train", "--db", recorded)
    assert "left out 2 configs" in train.stderr or "profiles are not known" in train.stderr
    call = ("analyze", folder / "scale.cu", *spec, "--gpu", "a100", "--db", recorded, "--effort", "recorded")
    done = run(*call, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["candidates"], answer["profiled"]) == (2, 2)
    (folder / "scale.toml").write_text(SPEC.replace("64, 128, 256", "64, 128, 256, 512"))
    other = run(*call)
    assert other.returncode == 2
    assert "has 2 rows of another source or spec of scale, none of this one" in other.stderr
