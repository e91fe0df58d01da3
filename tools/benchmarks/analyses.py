"""Whole analyses of users' kernels, from a command to its answer, beside another checkout of kernrec.

    python tools/bench.py analyses [--before ../other-checkout] [--rounds 3] [--only stencil2d]

A command is run on one processor (`taskset`), of this checkout and of the other one by turns. Its processor time is
that of all processes that it starts. Neither has results of the compiler, of the emulator, or a database of the
user's; what an installation makes once (byte code, the schema of databases) is there after a first round that does not
count. Printed are medians of the rounds, configs a second of processor time, how many times those of the other checkout
that is, and whether both answers are equal but for seconds. Exits 1 where a kernel gains less than the aim.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from front import ROOT, Table

from .cold import RUN, environment_in
from .timing import spent

AIM = 2.0
_DATA = ROOT / "datasets" / "kernels"
_NARROW = {"block_size_x": "[32, 64]", "tile_size_x": "[1, 2]", "tile_size_y": "[1, 2]", "time_steps": "[1, 2]"}
"""Values of the tunables of stencil2d, of which the command would profile 2,400 configs."""
_PRODUCT = """
grid = "grid"
flops = "2 * m * n * k"
[arguments]
a = { dtype = "f16", shape = ["m", "k"] }
b = { dtype = "f16", shape = ["k", "n"] }
c = { dtype = "f16", shape = ["m", "n"] }
m = 4096
n = 4096
k = 4096
stride_a = 4096
stride_b = 4096
stride_c = 4096
"""
_ROWS = """
grid = "grid"
[arguments]
x = { dtype = "f16", shape = [4096, "columns"] }
weight = { dtype = "f16", shape = ["columns"] }
bias = { dtype = "f16", shape = ["columns"] }
y = { dtype = "f16", shape = [4096, "columns"] }
columns = 4096
epsilon = 1e-5
"""
_CHANGES = ("analysis_s", "profiled_s")


def run(before: Path | None = None, rounds: int = 3, only: str = "") -> int:
    """Print a row for each kernel; before: a checkout of another version."""
    checkouts = {"now": ROOT} | ({} if before is None else {"before": before.resolve()})
    missed, table = False, Table(f"medians of {rounds} rounds, processor time")
    with tempfile.TemporaryDirectory() as name:
        for kernel, words in _commands(Path(name)).items():
            if only not in kernel:
                continue
            seconds: dict[str, list[float]] = {which: [] for which in checkouts}
            answers: dict[str, Any] = {}
            for number in range(rounds + 1):
                for which, checkout in checkouts.items():
                    took, answers[which] = _analyzed(checkout, words, Path(name, which))
                    if number:
                        seconds[which].append(took)
            configs = answers["now"]["profiled"]
            medians = {which: statistics.median(each) for which, each in seconds.items()}
            cells: dict[str, object] = {"kernel": kernel, "configs": configs}
            for which, median in medians.items():
                cells |= {f"{which} s": median, f"{which} configs/s": configs / median}
            if before is not None:
                times = statistics.median(b / a for a, b in zip(seconds["now"], seconds["before"], strict=True))
                same = _plain(answers["now"]) == _plain(answers["before"])
                missed = missed or times < AIM
                cells |= {"times": times, "answers": "equal" if same else "DIFFER"}
            table.row(cells)
    return int(missed)


def _commands(folder: Path) -> dict[str, list[str]]:
    """The arguments of `kernrec analyze` by kernel; specs and calls are written to the folder."""
    stencil = json.loads((_DATA / "stencil2d.json").read_text(encoding="utf-8"))
    for tunable in stencil["ConfigurationSpace"]["TuningParameters"]:
        tunable["Values"] = _NARROW.get(tunable["Name"], tunable["Values"])
    stencil["ConfigurationSpace"]["TuningParameters"][1]["Values"] = "[4, 8]"
    (folder / "stencil2d.json").write_text(json.dumps(stencil), encoding="utf-8")
    tiles = [(m, n, k, w) for m in (64, 128) for n in (64, 128) for k in (32, 64) for w in (4, 8)]
    configs = (
        f"[[configs]]\nBLOCK_M = {m}\nBLOCK_N = {n}\nBLOCK_K = {k}\nGROUP_M = 8\nnum_warps = {w}\nnum_stages = 3\n"
        for m, n, k, w in tiles
    )
    (folder / "product.toml").write_text(_PRODUCT + "".join(configs), encoding="utf-8")
    warps = (f"[[configs]]\nWIDTH = 4096\nnum_warps = {w}\n" for w in (1, 2, 4, 8, 16))
    (folder / "rows.toml").write_text(_ROWS + "".join(warps), encoding="utf-8")
    examples, textbook, triton = ROOT / "docs" / "examples", _DATA / "textbook", _DATA / "triton"
    commands: dict[str, list[Path | str]] = {
        "blur": [examples / "blur.cu", "--spec", examples / "blur.toml"],
        "matvec_shared": [textbook / "matvec_shared.cu", "--spec", textbook / "matvec_shared.toml"],
        "nbody": [textbook / "nbody.cu", "--spec", textbook / "nbody.toml"],
        "stencil2d": [_DATA / "stencil2d.cu", "--spec", folder / "stencil2d.json"],
        "Triton layernorm": [f"{triton / 'rows.py'}:layernorm", "--spec", folder / "rows.toml", "--gpu", "a100"],
        "Triton product": [f"{triton / 'matmul.py'}:matmul", "--spec", folder / "product.toml", "--gpu", "a100"],
    }
    return {
        kernel: [*map(str, words), *([] if "--gpu" in words else ["--gpu", "rtx4090"])]
        for kernel, words in commands.items()
    }


def _analyzed(checkout: Path, words: list[str], folder: Path) -> tuple[float, Mapping[str, Any]]:
    """(processor time in s, answer) of a command of a checkout; `folder`: of its caches."""
    folder.mkdir(exist_ok=True)
    database = folder / "own.duckdb"
    for results in ("compile", "emulated"):
        shutil.rmtree(folder / "cache" / results, ignore_errors=True)
    database.unlink(missing_ok=True)
    environment = environment_in(folder) | {"PYTHONPATH": str(checkout), "HOME": str(folder)}
    command = ["taskset", "-c", "0", sys.executable, "-c", RUN, "analyze", *words, "--json", "--db", str(database)]
    done: list[subprocess.CompletedProcess[str]] = []

    def ask() -> None:
        done.append(subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False))

    took = spent(ask).cpu
    if done[0].returncode:
        raise RuntimeError(f"{checkout}: {done[0].stderr.strip()}")
    return took, json.loads(done[0].stdout)


def _plain(value: Any) -> Any:
    """An answer without the seconds that it took."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if key not in _CHANGES}
    return [_plain(each) for each in value] if isinstance(value, list) else value
