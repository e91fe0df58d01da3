"""Run self-checking CUDA programs under `kernrec capture`, and count the programs with correct results.

    python tools/capture_programs.py --suite HeCBench=FOLDER --suite cuda-samples=FOLDER --built BUILT --report out.csv

capture_programs.csv lists the programs, with arguments for short runs. Fetch the suites' repositories first. A result
is right if the program exits with status 0 and, if it reports on its own check, reports that it passed.
`kernrec analyze` shows which of the calls in the folder `--calls` can be analyzed without changes.
"""

import csv
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from front import script

from kernrec.capture.program_run import libraries
from kernrec.compile.nvcc import nvcc_version, required_nvcc

LIST = Path(__file__).with_suffix(".csv")
RIGHT = re.compile(
    r"\bPASS(?:ED)?\b|test passed|(?:verification|check|sort)\b.*succe|results? (?:are|is) correct|\bOK\b|successful"
    r"|Error Threshold.*: 0$|misses: 0$|\bsuccess\b|error rate: 0|correct\b|L1 norm.*E-0[6-9]|completed, returned OK"
    r"|Test Results: 0 Failures|results match\b|L1-Error: 0$",
    re.I | re.M,
)
WRONG = re.compile(
    r"(?<!assertion )(?<!: 0 )\bFAIL(?!(?:ed|ures)?\s*[:=]?\s*0\b|ed as expected)|mismatch|incorrect|wrong|not correct"
    r"|Error Threshold.*: [1-9]|misses: [1-9]",
    re.I,
)
_FOLDERS = {"HeCBench": "src/{}-cuda", "cuda-samples": "Samples/*/{}", "PolyBench-ACC": "CUDA/**/{}.cu"}
_OPTIONS = {
    "cuda-samples": ["-I{root}/Common"],
    "PolyBench-ACC": [
        *("-I{root}/CUDA/utilities", "-I{root}/common", "-DMINI_DATASET", "-DRUN_ON_CPU"),
        "-DcudaThreadSynchronize=cudaDeviceSynchronize",  # CUDA 13 removed cudaThreadSynchronize.
    ],
}
_SUFFIXES = (".cu", ".cpp", ".c", ".cc")
_BUILD_S = 400.0
_WALL = 15
"""Maximum run time divided by processor time. It is large, because the machine may be busy."""
_KILLED = (-signal.SIGKILL, -signal.SIGXCPU, 128 + signal.SIGKILL, 128 + signal.SIGXCPU)

WRAPPER = """#!{python}
import os, sys
drop = ("-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code", "-cudart", "--cudart",
        "-lcudart", "-lcudadevrt")
arguments, skip = [], False
for text in sys.argv[1:]:
    if skip:
        skip = False
    elif text.startswith(drop):
        skip = text in drop and not text.startswith("-l")
    else:
        arguments.append(text)
links = not {{"-c", "-dc", "-ptx", "-cubin", "-M", "-MM", "-E", "--compile"}} & set(arguments)
tail = ["-L{folder}", "-l:libcudart.so.{version}", "-l:libcuda.so.1"] if links else []
os.execv("{nvcc}", ["{nvcc}", "-arch=compute_80", "-cudart", "none", *arguments, *tail])
"""


class Program(NamedTuple):
    """Program of a suite, with its arguments. `check` is `output` if the program prints whether its result is correct,
    or else `status`. `verified` is `right` if the program ran correctly before, or else empty."""

    suite: str
    name: str
    arguments: str
    check: str
    verified: str


Outcome = tuple[str, float, str]
"""(`right`, `wrong`, `too slow`, `not built` or exit status, seconds, text) of one program."""


def run(
    suite: Annotated[list[str], typer.Option()], only: Annotated[list[str] | None, typer.Option()] = None,
    built: Path = Path("built"), seconds: int = 20, processes: int = 1, verified: bool = False,
    report: Path | None = None, calls: Path | None = None,
) -> None:  # fmt: skip
    """Run the programs of the suites, given as NAME=FOLDER, or the programs in `only`. Compiled programs are stored in
    `built`, and their calls in `calls`. `seconds` limits the processor time of a run. `verified` selects programs that
    ran correctly before. `report` is a CSV file with a row for each program."""
    suites = {name: Path(folder).absolute() for name, _, folder in (text.partition("=") for text in suite)}
    with LIST.open(newline="") as file:
        programs = [Program(*row.values()) for row in csv.DictReader(file) if row["suite"] in suites]
    programs = [each for each in programs if (not only or each.name in only) and (each.verified or not verified)]
    built = built.absolute()
    path = f"{_tools(built / 'bin')}{os.pathsep}{os.environ['PATH']}"

    def outcome(program: Program) -> Outcome:
        made = built / f"{program.suite}-{program.name}"
        if problem := _build(program, suites[program.suite], made, path):
            return "not built", 0.0, problem
        return _try(program, made, seconds, calls)

    rows = []
    with ThreadPoolExecutor(processes) as pool:
        for program, (result, took, text) in zip(programs, pool.map(outcome, programs), strict=True):
            rows.append((*program, result, f"{took:.0f}", text))
            print(*program[:2], *rows[-1][5:7], text[:150], sep="\t", flush=True)
    if report:
        with report.open("w", newline="") as file:
            csv.writer(file).writerows([(*Program._fields, "result", "seconds", "text"), *rows])
    for key, count in sorted(Counter((row[0], row[5]) for row in rows).items()):
        print(*key, count)


def _tools(folder: Path) -> Path:
    """Write an `nvcc` that links programs with the stand-ins of CUDA's libraries, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    version = nvcc_version().removeprefix("nvcc ").partition(".")[0]
    text = WRAPPER.format(python=sys.executable, folder=libraries(), version=version, nvcc=required_nvcc())
    (folder / "nvcc").write_text(text)
    (folder / "nvcc").chmod(0o755)
    return folder


def _build(program: Program, root: Path, made: Path, path: str) -> str:
    """Copy and compile a program, if it is not built yet. Return the first error, or an empty text."""
    places = list(root.glob(_FOLDERS[program.suite].format(program.name)))
    if not places:
        return "the suite has no such program"
    folder = places[0] if places[0].is_dir() else places[0].parent
    copied = made / folder.name
    if (made / "built").exists():
        return ""
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(folder, copied)
    for beside in folder.parent.iterdir():  # Programs use data in neighboring folders.
        if beside.name != folder.name:
            (made / beside.name).symlink_to(beside)
    if program.suite == "HeCBench":
        command = ["make", "CC=nvcc", "NVCC=nvcc", "ARCH=sm_80", "EXTRA_CFLAGS=-w"]
    else:
        sources = [str(path.relative_to(copied)) for path in sorted(copied.glob("*")) if path.suffix in _SUFFIXES]
        options = [text.format(root=root) for text in ["-I.", *_OPTIONS[program.suite]]]
        command = ["nvcc", "-O2", "-std=c++17", "-w", "-Xcompiler", "-fopenmp", *options, *sources, "-o", "main"]
    compiling = partial(subprocess.run, cwd=copied, env=os.environ | {"PATH": path}, timeout=_BUILD_S)
    try:
        done = compiling(command, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        return "the build took too long"
    if done.returncode == 0:
        (made / "built").touch()
        return ""
    lines = (done.stderr + done.stdout).splitlines()
    return next((line for line in lines if re.search(r"error|undefined|No such|No rule", line)), "make failed")[:200]


def _try(program: Program, made: Path, seconds: int, calls: Path | None) -> Outcome:
    folder = next(path for path in made.iterdir() if path.is_dir() and not path.is_symlink())
    binary = next(
        path for path in (folder / "main", *folder.iterdir())
        if path.is_file() and os.access(path, os.X_OK) and not path.suffix
    )  # fmt: skip
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        recorded = calls.absolute() / program.name if calls else Path(scratch, "calls")
        capture = [sys.executable, "-m", "kernrec", "capture", "-o", str(recorded), "--", str(binary)]
        status, output = _captured([*capture, *shlex.split(program.arguments)], folder, seconds)
    took = time.monotonic() - start
    last = " | ".join(line for line in output.splitlines() if line.startswith(("kernrec:", "Usage", "usage")))[:300]
    if status is None:
        return "too slow", took, last
    printed = "\n".join(line for line in output.splitlines() if not line.startswith(("note:", "kernrec:")))
    passed = program.check == "status" or RIGHT.search(printed)
    if status == 0 and passed and not WRONG.search(printed):
        return "right", took, ""
    wrong = next((line for line in printed.splitlines() if WRONG.search(line)), "")
    text = last or wrong or printed[-200:].replace("\n", " | ")
    return "wrong" if status == 0 else f"status {status}", took, text


def _captured(command: list[str], folder: Path, seconds: int) -> tuple[int | None, str]:
    """Run a command with limited processor time. Return (exit status, or None if it took too long; output)."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        limited = ["bash", "-c", f"ulimit -t {seconds}; exec {shlex.join(command)}"]
        process = subprocess.Popen(limited, cwd=folder, stdout=output, stderr=output, start_new_session=True)
        try:
            status: int | None = process.wait(_WALL * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        output.seek(0)
        return None if status in _KILLED else status, output.read(1 << 20)


if __name__ == "__main__":
    script(run)
