"""Run self-checking CUDA programs under `kernrec capture`, and count those that are right.

    python tools/capture_programs.py HeCBench/src/*-cuda cuda-samples/Samples/*/* --report programs.csv

Each folder is a program: it has a Makefile, or else all its .cu, .cpp and .c files make the program. A program that
says PASS (or the like) and nothing of a failure is right. Counts of repetitions become 1, and large arguments are
divided by 16; if the program then fails, it gets the arguments of its Makefile.
"""

import argparse
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
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernrec.capture.native_library import libraries
from kernrec.compile.nvcc import nvcc_version, required_nvcc

RIGHT = re.compile(
    r"\bPASS(?:ED)?\b|test passed|verification.*success|results? (?:are|is) correct|\bOK\b|successful", re.I
)
WRONG = re.compile(r"\bFAIL|mismatch|incorrect|\berror\b(?!\S)(?!\s*[:=]?\s*[-+]?[0-9.]+)|wrong", re.I)
_REPEATS = re.compile(r"repeat|iter|times|loops|trials|runs|timesteps|steps", re.I)
_SUFFIXES = (".cu", ".cpp", ".c", ".cc")
_BUILD_S = 900.0
_LARGE = 1024
_KILLED = (-signal.SIGKILL, -signal.SIGXCPU, 128 + signal.SIGKILL, 128 + signal.SIGXCPU)
_WALL = 6
"""Longest run on a busy machine, in multiples of its processor time."""

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
os.execv("{nvcc}", ["{nvcc}", "-arch=sm_80", "-cudart", "none", *arguments, *tail])
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of one run")
    parser.add_argument(
        "--include", action="append", default=[], help="folder with headers, for folders without Makefile"
    )
    parser.add_argument("--report", type=Path, help="CSV with a row for each program")
    parser.add_argument("--calls", type=Path, help="folder for the calls of each program")
    wanted = parser.parse_args()
    rows, counts = [], Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        tools = _tools(Path(scratch))
        for folder in wanted.folders:
            row = _try(folder, Path(scratch), tools, wanted)
            if row is None:
                continue
            rows.append(row)
            counts[row[1]] += 1
            print(*row[:3], row[3][:120], sep="\t", flush=True)
            if wanted.report:
                with wanted.report.open("w", newline="") as file:
                    csv.writer(file).writerows([("program", "result", "seconds", "text"), *rows])
    print(", ".join(f"{count} {result}" for result, count in counts.most_common()))
    return 0


def _tools(scratch: Path) -> Path:
    folder = scratch / "bin"
    folder.mkdir()
    version = nvcc_version().removeprefix("nvcc ").partition(".")[0]
    text = WRAPPER.format(python=sys.executable, folder=libraries(), version=version, nvcc=required_nvcc())
    (folder / "nvcc").write_text(text)
    (folder / "nvcc").chmod(0o755)
    return folder


def _try(folder: Path, scratch: Path, tools: Path, wanted: argparse.Namespace) -> tuple[str, str, str, str] | None:
    sources = [path for path in folder.glob("**/*") if path.suffix in (*_SUFFIXES, ".h", ".cuh", ".hpp")]
    text = "".join(path.read_text(errors="replace") for path in sources)
    if not RIGHT.search(text) or not any(path.suffix == ".cu" for path in sources):
        return None
    copied = scratch / "program"
    shutil.rmtree(copied.parent / "tree", ignore_errors=True)
    copied = scratch / "tree" / folder.name
    shutil.copytree(folder, copied)
    for beside in folder.parent.iterdir():  # data and sources of other variants, by relative paths
        if beside.name != folder.name:
            (copied.parent / beside.name).symlink_to(beside.absolute())
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    start = time.monotonic()
    if problem := _build(copied, environment, wanted.include):
        return folder.name, "not built", f"{time.monotonic() - start:.0f}", problem
    for command in _commands(copied, text, environment):
        start = time.monotonic()
        calls = wanted.calls / folder.name if wanted.calls else scratch / "calls"
        status, output = _run(
            [sys.executable, "-m", "kernrec", "capture", "-o", str(calls), "--", *command], copied, wanted.seconds
        )
        took = f"{time.monotonic() - start:.0f}"
        if status == 0 and not WRONG.search(output):
            break
    last = " | ".join(line for line in output.splitlines() if line.startswith(("kernrec:", "Usage", "usage")))[:300]
    if status is None:
        return folder.name, "too slow", took, last
    printed = "\n".join(line for line in output.splitlines() if not line.startswith(("note:", "kernrec:")))
    if status == 0 and RIGHT.search(printed) and not WRONG.search(printed):
        return folder.name, "right", took, ""
    printed_line = next((line for line in printed.splitlines() if WRONG.search(line)), "") or printed[-200:].replace(
        "\n", " | "
    )
    return folder.name, "wrong" if status == 0 else f"status {status}", took, last or printed_line


def _build(folder: Path, environment: dict[str, str], include: Sequence[str]) -> str:
    if (folder / "Makefile").exists():
        command = ["make", "CC=nvcc", "NVCC=nvcc", "ARCH=sm_80", "EXTRA_CFLAGS=-w"]
    else:
        sources = [str(path.relative_to(folder)) for path in sorted(folder.glob("*")) if path.suffix in _SUFFIXES]
        options = [f"-I{path}" for path in (".", *include)]
        command = ["nvcc", "-O3", "-std=c++17", "-w", *options, *sources, "-o", "main"]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_BUILD_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "the build took too long"
    if done.returncode == 0:
        return ""
    lines = [
        line for line in (done.stderr + done.stdout).splitlines() if re.search(r"error|undefined|No such|No rule", line)
    ]
    return (lines or ["make failed"])[0][:200]


def _commands(folder: Path, text: str, environment: dict[str, str]) -> Iterator[list[str]]:
    command = ["./main"]
    if (folder / "Makefile").exists():
        shown = subprocess.run(
            ["make", "-n", "run"], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        runs = [line.strip() for line in shown.stdout.splitlines() if re.match(r"\s*\./", line)]
        if runs:
            command = shlex.split(runs[0].split("&&")[0].split(">")[0].split("|")[0])
        else:
            programs = [
                path for path in folder.iterdir() if path.is_file() and os.access(path, os.X_OK) and not path.suffix
            ]
            command = [f"./{programs[0].name}"] if programs else command
    usage = re.search(r"[Uu]sage:?[^\n\"]*?%s\s+([^\"]+?)\\n", text)
    names = re.findall(r"[<\[(]([^>\])]+)[>\])]", usage[1]) if usage else []
    first = list(command)
    for i, name in enumerate(names, 1):
        if i < len(first) and first[i].isdigit() and _REPEATS.search(name):
            first[i] = "1"
    if not names and len(first) > 1 and first[-1].isdigit():
        first[-1] = "1"
    smaller = [str(int(word) // 16) if word.isdigit() and int(word) >= _LARGE else word for word in first]
    if smaller != first:
        yield smaller
    yield first


def _run(command: Sequence[str], folder: Path, seconds: float) -> tuple[int | None, str]:
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        limit = f"ulimit -t {seconds:.0f}; exec {shlex.join(command)}"
        program = subprocess.Popen(
            ["bash", "-c", limit], cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = program.wait(_WALL * seconds)
            status = None if status in _KILLED else status
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
            status = None
        output.seek(0)
        return status, output.read(1 << 20)


if __name__ == "__main__":
    sys.exit(main())
