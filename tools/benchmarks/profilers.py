"""The CUDA tools that watch a kernel run, where they are installed: compute-sanitizer and Nsight Compute.

Both run `tools/bench.py kernels` anew, on a few configs of one op.
"""

import csv
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kernrec.kernel import Kernel

_BENCH = [sys.executable, str(Path(__file__).resolve().parents[1] / "bench.py"), "kernels"]
_FOUND = 86  # exit status that compute-sanitizer is told to give when it finds something
_TIMEOUT_S = 480
METRIC = "smsp__inst_executed.sum"
"""Warp instructions that were executed."""


def sanitized(tool: str, op: str, sample: int) -> str:
    """The verdict of compute-sanitizer's `tool` on `sample` configs of each kernel of an op, in one line."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return "not run: compute-sanitizer is not installed"
    with tempfile.TemporaryDirectory() as folder:
        check = ["--op", op, "--steps", "check", "--sample", str(sample), "--out", f"{folder}/out.json"]
        command = [program, "--tool", tool, "--error-exitcode", str(_FOUND), *_BENCH, *check]
        return verdict(*_run(command))


def verdict(status: int | None, output: str) -> str:
    """A line that says how a run under compute-sanitizer ended; `ERRORS` begins it where something was found."""
    last = next((text for text in reversed(output.splitlines()) if "ERROR SUMMARY" in text), "").strip("= ")
    if status == 0:
        return f"clean ({last})" if last else "clean"
    if status is None:
        return f"not finished in {_TIMEOUT_S} s"
    if status == _FOUND:
        return f"ERRORS ({last})"
    last_line = (output.strip().splitlines() or ["nothing was said"])[-1]
    return f"not finished: exit status {status} ({last_line})"


def counted_on_card(kernel: Kernel, dtype: str, layout: str) -> dict[str, int] | str:
    """Warp instructions that one run of each entry executed, as Nsight Compute counts them; a line where it cannot."""
    program = shutil.which("ncu")
    if program is None:
        return "not counted: Nsight Compute (ncu) is not installed"
    names = "|".join(dict.fromkeys(launch.entry for launch in kernel.launches))
    command = [program, "--csv", "--page", "raw", "--metrics", METRIC, "--kernel-name", f"regex:^({names})$"]
    command += [*_BENCH, "--steps", "once", "--only", f"{kernel.name},{dtype},{layout}"]
    status, output = _run(command)
    if status != 0:
        return f"not counted: ncu ended with status {status}"
    return executed(output)


def executed(report: str) -> dict[str, int]:
    """Warp instructions by kernel, from Nsight Compute's page `raw` as CSV; launches of one kernel are added up."""
    lines = report.splitlines()
    start = next((i for i, text in enumerate(lines) if text.startswith('"ID"')), len(lines))
    counts: dict[str, int] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        if row.get("ID"):  # the row below the head holds the units
            name = row["Kernel Name"].partition("(")[0]
            counts[name] = counts.get(name, 0) + int(float(row[METRIC].replace(",", "")))
    return counts


def _run(command: list[str]) -> tuple[int | None, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr
