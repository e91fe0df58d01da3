"""Misuse is said at once, in one line, before any work: nothing is written, the status is 2."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from kernrec.cli import misuse
from kernrec.cli.app import app
from tests.helpers.command import run_here

COMMANDS = typer.main.get_command(app).commands
NAMES = [*COMMANDS, *(f"db {name}" for name in COMMANDS["db"].commands), "db export --format"]
OPTIONS = {
    name: [word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)]
    for name, command in COMMANDS.items()
}

SOURCE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }'
SPEC = """
name = "twice"
source = "twice.cu"
[problem]
dims = { n = 64 }
[problem.tensors]
x = { shape = ["n"], role = "inout" }
[tunables]
threads = { values = [32, 64] }
[[launch]]
entry = "twice"
grid = ["ceil_div(n, threads)"]
block = ["threads"]
arguments = ["x"]
"""
ANALYZE = ("analyze", "twice.cu", "--spec", "twice.toml", "--gpu", "t4", "--db", "own.duckdb")
EXPLAIN = ("explain", "--op", "matmul", "--gpu", "t4", "--shape", "m=64,n=64,k=64")
GENETIC = ("collect", "--strategy", "genetic", "--op", "matmul")
MNK = ("--shape", "m=64,n=64,k=64")
REFINE = ("collect", "--strategy", "refine", "--op", "matmul", "--shape", "m=64,n=64,k=64")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ((*ANALYZE, "--objective", "fast"), "unknown objective 'fast'"),
        ((*ANALYZE, "--effort", "lots"), "unknown effort 'lots'"),
        ((*ANALYZE, "--budget", "0"), "at least 1 is accepted"),
        ((*ANALYZE, "--grid", "3"), "--grid and twice.toml were both given"),
        ((*ANALYZE[:-1], "broken.json/own.duckdb"), "cannot be created: "),
        (("check", "twice.cu", "x=f32[32]", "--budget", "0"), "--budget was removed: --time limits the blocks"),
        (("check", "twice.cu", "x=f32[32]", "--shared", "-4"), "0 or more are accepted"),
        (("recommend", "--kernel", "twice", "--gpu", "t4", "--max-power", "9W"), "--kernel goes with --shape"),
        (("recommend", "--op", "mm", "--gpu", "t4", "--output", "x"), "--output goes with --emit"),
        (("recommend", "--op", "mm", "--gpu", "t4", *MNK, "--emit", "cuda:8.0"), "takes nothing after a colon"),
        (("recommend", "--op", "mm", "--gpu", "t4", *MNK, "--emit", "ptx:8.9"), "6.3, 6.4, 6.5, 7.0"),
        (("recommend", "--op", "mm", "--gpu", "t4", *MNK, "--emit", "triton", "--output", "k.cu"), "into a .py file"),
        (("recommend", "--op", "mm", "--gpu", "t4", "--emit", "cuda"), "--emit cuda needs a --shape"),
        (
            ("recommend", "--op", "mm", "--gpu", "t4", *MNK, "--emit", "cuda", "--output", "none/x.cu"),
            "existing folder",
        ),
        (("recommend", "--op", "mm", "--gpu", "t4,l4", *MNK, "--emit", "cuda"), "give one GPU and one shape"),
        (
            ("recommend", "--op", "mm", "--gpu", "t4", *MNK, "--emit", "cuda", "--bill", "calls=9"),
            "goes without a bill",
        ),
        (("check", "twice.cu", "x=f32[32]", "--save", "x=folder"), "expected a .npy file"),
        (("check", "twice.cu", "x=f32[32]", "--save", "x=none/x.npy"), "in an existing folder"),
        (("check", "twice.toml", "x=f32[32]"), "a .cu or .ptx file is expected"),
        ((*REFINE, "--objective", "pareto"), "unknown objective 'pareto'"),
        ((*REFINE, "--budget", "2"), "expected a time or a number of configs, such as 30m or 200configs"),
        ((*REFINE, "--workload", "bert-base"), "--shape and --workload were both given"),
        (
            ("collect", "--strategy", "refine", "--workload", "broken.json"),
            "broken.json is not the config.json of a model",
        ),
        (("collect", "--op", "matmul", "--strategy", "genetc"), "unknown strategy 'genetc'; did you mean genetic?"),
        (("collect", "--op", "mm", "--set-power-limit", "250"), "expected a quantity with its unit, such as 250W"),
        (
            ("collect", "--replay", "x", "--db", "y", "--lock-clocks", "1GHz"),
            "--lock-clocks 1GHz goes without --replay; a recording is replayed as it was recorded",
        ),
        (("search",), "`kernrec search` was removed; use `kernrec collect --strategy guide` (or genetic)"),
        (("refine", "--op", "mm"), "`kernrec refine` was removed; use `kernrec collect --strategy refine`"),
        (("collect", "--strategy", "guide"), "name what to measure with --op, and --shape or --workload"),
        ((*GENETIC, *MNK, "--budget", "10ms"), "shorter than one measurement, which takes up to"),
        (GENETIC, "--strategy genetic searches one problem: give a --shape with --op"),
        ((*GENETIC, "--replay", "shipped"), "--strategy genetic searches one problem: give a --shape with --op"),
        ((*GENETIC, *MNK, "--budget", "5"), "such as 30m or 200configs"),
        ((*EXPLAIN, "--db", "broken.json"), "is not a DuckDB database"),
        (("recomend", "--op", "mm"), "unknown command 'recomend'; did you mean recommend? (`kernrec --help`"),
        (("frobnicate",), "unknown command 'frobnicate'; 16 are known (`kernrec --help` lists them)"),
        (("db", "inof"), "unknown command 'inof'; did you mean info? (`kernrec db --help` lists them)"),
        (
            (*REFINE, "--gpux", "t4"),
            "unknown option '--gpux'; did you mean --gpu? (`kernrec collect --help` lists them)",
        ),
        (
            ("recommend", "--op", "mm", *MNK),
            "--gpu is missing; expected: GPUs by name (`kernrec list gpus`) or .toml: a,b",
        ),
        (("recommend", "--op", "mm", *MNK, "--gpu"), "--gpu has no value"),
        (("recommend", "--op", "mm", *MNK, "--gpu", "t4", "--top", "x"), "--top 'x': a whole number is expected"),
        (("recommend", "--op", "mm", *MNK, "--gpu", "t4", "--emit", "rust"), "unknown format to emit 'rust'; known: "),
        (
            ("recommend", "--op", "mm", *MNK, "--gpu", "t4", "--gpu", "l4"),
            "--gpu is given twice; once is expected: GPUs by name (`kernrec list gpus`) or .toml: a,b",
        ),
        (
            ("db", "export", "--db", "a", "--db", "b"),
            "--db is given twice; `kernrec db export` uses one",
        ),
        (("list", "ops", "--db", "a"), "--db: `kernrec list` does not take it; KERNREC_DB names your own database"),
        (("db", "info", "--db"), "--db has no value; expected: database to use instead of your own"),
        (
            ("recommend", "--op", "mm", "--gpu", "t4", "--M", "64"),
            "a dimension is a part of the shape",
        ),
        (("recommend", "gemm", "--gpu", "t4", *MNK), "unexpected argument 'gemm'; an op is named with --op gemm"),
        (("monitor", "--pid", "abc"), "--pid 'abc': a whole number is expected"),
        (("list", "ops", "t4"), "unexpected argument 't4'; a name goes with `kernrec list gpus`"),
        (("list", "gpu"), "unknown list 'gpu'; did you mean gpus"),
        (("explore", "--op", "mm", "--output", "x.pdf"), "a name that ends in .html is expected"),
        (
            ("analyze", "none.cu", "--spec", "twice.toml", "--gpu", "t4"),
            "none.cu cannot be read: there is no such file",
        ),
        (
            ("analyze", "folder/twice.cu", "--spec", "twice.toml", "--gpu", "t4"),
            "twice.toml describes twice.cu, not folder/twice.cu",
        ),
        (
            ("check", "functions.ptx"),
            "functions.ptx has no kernel; a file with one is expected",
        ),
        (("recommend", "--workload", "noise.toml", "--gpu", "t4"), "noise.toml: not UTF-8 text"),
        (("db", "import", "noise.zip"), "noise.zip is not a bundle: it does not begin as a zip file does"),
    ],
)
def test_misuse_is_one_line_and_writes_nothing(command: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "twice.cu").write_text(SOURCE)
    (tmp_path / "twice.toml").write_text(SPEC)
    (tmp_path / "broken.json").write_text("{ broken")
    (tmp_path / "functions.ptx").write_text(".version 8.0\n.target sm_80\n.address_size 64\n")
    for name in ("noise.toml", "noise.zip"):
        (tmp_path / name).write_bytes(bytes(range(256)))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "twice.cu").write_text(SOURCE)
    before = sorted(tmp_path.rglob("*"))
    done = run_here(*command, cwd=tmp_path, home=tmp_path / "home")
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.startswith("kernrec: ")
    assert done.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", [name for name in misuse.REMOVED if name not in NAMES])
def test_what_was_removed_names_its_replacement(name: str) -> None:
    *command, last = name.split()
    if not command and last.startswith("-"):  # an option of several commands: any that lacks it answers
        lacking = (each for each in ("recommend", "analyze", "train") if last not in OPTIONS[each])
        command = [next(lacking)]
    done = run_here(*command, last)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kernrec: ")
    assert re.search("was removed(; use|:) ", done.stderr)
    assert misuse.REMOVED[name].removeprefix("no option: ") in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("to", "status", "message"), [(">&-", 0, ""), (">/dev/full", 1, "cannot be written: No space")]
)
def test_output_that_goes_nowhere_gets_no_traceback(to: str, status: int, message: str) -> None:
    if to == ">/dev/full" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    done = subprocess.run(
        f"{sys.executable} -m kernrec list ops {to}",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, message in done.stderr) == (status, True)
    assert done.stderr.count("\n") == bool(message)
