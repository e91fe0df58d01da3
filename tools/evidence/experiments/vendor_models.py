"""How well the models of serving backends and libraries predict problems, sizes and GPUs that are held out.

problems  five folds over problems; a problem is in one fold on all GPUs, in all data types, layouts and backends
sizes     all problems of a fifth of the recorded sizes of each dimension of the grid held out together
GPU       the GPUs of one architecture held out, trees for any GPU trained on the others
backend   the share of problems on which two backends differ by a tenth or more and the faster one is named

Printed are median errors, 90th percentiles and the coverage of 90 % intervals of the models that ship, as their
training (`tools/train_library_model.py`) measured them. Exits with status 1 if an aim is missed.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
import typer
from front import ROOT, Table

from evidence.recordings.vendor import OPS
from kernrec.gpu import find_gpu
from kernrec.model.vendor import model_file
from kernrec.model.vendor.recorded_set import OTHER
from kernrec.training.vendor_table import FOLDS

AIMS = {
    "bf16": (0.025, 0.12), "f8e4m3": (0.03, 0.15), "f8block": (0.04, 0.2), "nvfp4": (0.035, 1.0),
    "w8a16": (0.04, 1.0), "w4a16": (0.04, 1.0), "single": (0.04, 0.1), "prompt": (0.035, 0.2), "token": (0.04, 0.15),
    "experts": (0.06, 0.25), "conv": (0.07, 0.13), "rows": (1.0, 0.1),
}  # fmt: skip
"""Largest median errors of a set's latency: problems held out, and GPUs held out."""
POWER_AIM = (0.03, 0.12)
"""Largest median errors of power given the time: problems held out, and GPUs held out."""
GPU_COVERAGE, COVERAGE, NAMED_AIM = 0.85, (0.88, 0.93), 0.9
"""Least coverage on GPUs held out; range of coverage on problems held out; share of faster backends named right."""
_ERROR, _P90 = "median error", "90th percentile"
_MOST_MB = 6.0
"""Size of all models that ship."""
_PROBLEMS, _GPU = 0, 1
"""Positions of the aims."""


def run(
    op: Annotated[list[str] | None, typer.Option()] = None,
    only: Annotated[list[str] | None, typer.Option("--set")] = None,
) -> int:
    """Print the figures, of some ops or sets only; return 0 if all aims are met."""
    table, missed = Table(), list[str]()
    folder = ROOT / "db" / "prebuilt" / "models"
    for name in op or OPS:
        card, _ = model_file.stored(folder / "vendor" / f"{name}.json")
        for entry in card["sets"]:
            if not only or entry["name"] in only:
                missed += _report(entry, table)
    shipped = sum(p.stat().st_size for p in folder.rglob("*") if p.suffix in (".json", ".trees")) / 1e6
    print(f"models that ship: {shipped:.2f} MB")
    missed += [f"models that ship: {shipped:.2f} MB, aim {_MOST_MB:g} MB"] * (shipped > _MOST_MB)
    print(*(f"aim missed: {line}" for line in missed), sep="\n")
    return int(bool(missed))


def _report(entry: Mapping[str, Any], table: Table) -> Iterator[str]:
    """Print the rows of a set and yield the aims that it misses."""
    name = entry["name"]
    if count := entry["left out, faster than the data sheet"]:
        print(f"{name}: {count} rows faster than the data sheet allows are excluded")
    for quantity, heads in entry["heads"].items():
        aims = AIMS.get(name, (1.0, 1.0)) if quantity == "latency" else POWER_AIM
        errors = []
        for gpu, head in heads.items():
            if "rows" not in head:  # trees for GPUs that were not recorded
                continue
            error, share = head[f"{_ERROR}, problems left out"], head["coverage, problems left out"]
            folds = "problems" if head.get("folds left out") == FOLDS else "a fifth of the problems"
            p90 = head.get(f"{_P90}, problems left out")
            table.row(_cells(folds, name, quantity, gpu, head["rows"], error, p90, share))
            backends = head["by stack"] if len(head["by stack"]) > 1 else {}
            for backend, of_backend in backends.items():
                table.row(_cells(f"  {backend}", name, quantity, gpu, None, of_backend))
            if sizes := head.get(f"{_ERROR}, sizes left out"):
                table.row(_cells("sizes", name, quantity, gpu, None, sizes))
            errors.append(error)
            if not COVERAGE[0] <= share <= COVERAGE[1]:
                yield f"{name}, coverage of {quantity} on {gpu}: {share:.0%}"
        if (median := float(np.median(errors))) > aims[_PROBLEMS]:
            yield f"{name}, {quantity}, problems held out: {median:.1%}, aim {aims[_PROBLEMS]:.1%}"
        if OTHER in heads:
            yield from _gpus(name, quantity, heads, aims[_GPU], table)
    right, count = entry.get("fastest stack named, and problems where two differ") or (0, 0)
    if count:
        print(f"{name}: the fastest backend is named in {right / count:.1%} of {count} problems")
        if right / count < NAMED_AIM:
            yield f"{name}, fastest backend named: {right / count:.0%}, aim {NAMED_AIM:.0%}"


def _gpus(name: str, quantity: str, heads: Mapping[str, Any], aim: float, table: Table) -> Iterator[str]:
    other = heads[OTHER]
    for arch, share in other["coverage, card left out"].items():
        errors = {gpu: e for gpu, e in other[f"{_ERROR}, card left out"].items() if find_gpu(gpu).arch == arch}
        for gpu, error in errors.items():
            p90 = other.get(f"{_P90}, card left out", {}).get(gpu)
            table.row(_cells("GPU", name, quantity, gpu, heads[gpu]["rows"], error, p90, share))
            if bound := other.get("median error of the bound"):
                table.row(_cells("  the bound only", name, quantity, gpu, None, bound[gpu]))
        if share < GPU_COVERAGE:
            yield f"{name}, coverage of {quantity} on {arch} held out: {share:.0%}"
        if (mean := float(np.mean(list(errors.values())))) > aim:
            yield f"{name}, {quantity} on {arch} held out: {mean:.1%}, aim {aim:.1%}"


def _cells(
    held_out: str, name: str, quantity: str, gpu: str, rows: int | None, error: float, p90: float | None = None,
    share: float | None = None,
) -> dict[str, object]:  # fmt: skip
    figures = {"error": error, "p90": p90, "inside": share}
    texts = {title: None if value is None else f"{value:.1%}" for title, value in figures.items()}
    return {"held out": held_out, "set": name, "of": quantity, "GPU": gpu, "rows": rows, **texts}
