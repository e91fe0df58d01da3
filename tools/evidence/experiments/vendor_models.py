"""Print how well the models of serving backends and libraries predict held-out problems, sizes and GPUs.

problems  five folds over problems; a problem is in the same fold on all GPUs, in all data types, layouts and backends
sizes     a fifth of the sizes held out in each dimension that has few recorded sizes
GPU       all GPUs of an architecture held out; predicted by trees that were trained on the other architectures
sibling   one GPU held out; predicted by trees that were trained on the other GPUs of its architecture
backend   fraction of problems whose fastest backend is predicted correctly, if two backends differ by at least 10 %

The table has the figures that training measured (`tools/train_library_model.py`): median errors, 90th percentiles and
the coverage of 90 % intervals of the shipped models.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from front import ROOT, Table
from library_training.table import FOLDS

from evidence.recordings.calls import OPS
from kernrec.gpu import find_gpu
from kernrec.model.baselines import model_file
from kernrec.model.baselines.recorded_set import OTHER


def run(
    op: Annotated[list[str] | None, typer.Option()] = None,
    only: Annotated[list[str] | None, typer.Option("--set")] = None,
) -> None:
    """Print the figures. `op` and `only` select ops and sets."""
    table, folder = Table(), ROOT / "db" / "prebuilt" / "models"
    for name in op or OPS:
        card, _ = model_file.stored(folder / "vendor" / f"{name}.json")
        for entry in (each for each in card["sets"] if not only or each["name"] in only):
            for quantity, heads in entry["heads"].items():
                for held_out, gpu, rows, *shares in _figures(heads):
                    texts = (None if share is None else f"{share:.1%}" for share in (*shares, None, None))
                    cells = {"set": entry["name"], "of": quantity, "held out": held_out, "GPU": gpu, "rows": rows}
                    table.row(cells | dict(zip(("error", "p90", "inside"), texts, strict=False)))
            right, count = entry.get("fastest stack named, and problems where two differ") or (0, 0)
            if count:
                print(f"{entry['name']}: the fastest backend is named in {right / count:.1%} of {count} problems")
    shipped = sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in (".json", ".trees"))
    print(f"models that ship: {shipped / 1e6:.2f} MB")


def _figures(heads: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield (what is held out, GPU, rows or None, median error), sometimes with 90th percentile and coverage."""
    for gpu, head in heads.items():
        if "rows" in head:  # Skip trees for GPUs without recordings.
            held_out = "problems" if head.get("folds left out") == FOLDS else "a fifth of the problems"
            names = ("median error", "90th percentile", "coverage")
            yield held_out, gpu, head["rows"], *(head.get(f"{name}, problems left out") for name in names)
            if len(head["by stack"]) > 1:
                yield from ((f"  {backend}", gpu, None, error) for backend, error in head["by stack"].items())
            if sizes := head.get("median error, sizes left out"):
                yield "sizes", gpu, None, sizes
    for head in heads.values():
        yield from (("sibling", gpu, None, error) for gpu, error in head.get("median error, GPU held out", {}).items())
    other = heads.get(OTHER, {})
    for gpu, error in other.get("median error, card left out", {}).items():
        p90, inside = other.get("90th percentile, card left out", {}).get(gpu), other["coverage, card left out"]
        yield "GPU", gpu, heads[gpu]["rows"], error, p90, inside[find_gpu(gpu).arch]
        if bound := other.get("median error of the bound"):
            yield "  the bound only", gpu, None, bound[gpu]
