"""Print how well the models of serving backends and libraries predict held-out problems, sizes and GPUs.

problems  five folds over problems; a problem is in the same fold on all GPUs, in all data types, layouts and backends
sizes     a fifth of the recorded sizes of each dimension with few sizes, held out with all their problems
GPU       all GPUs of an architecture held out; predicted by trees that were trained on the other architectures
sibling   one GPU held out; predicted by trees that were trained on the other GPUs of its architecture
backend   fraction of problems whose fastest backend is predicted correctly, if two backends differ by at least 10 %

The tables have median errors, 90th percentiles and the coverage of 90 % intervals of the shipped models. Training
measured these figures (`tools/train_library_model.py`).
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from front import ROOT, Table
from library_training.table import FOLDS

from evidence.recordings.vendor import OPS
from kernrec.gpu import find_gpu
from kernrec.model.baselines import model_file
from kernrec.model.baselines.recorded_set import OTHER

_ERROR, _P90 = "median error", "90th percentile"


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
                for cells in (*_gpus(heads), *_held_out_gpus(heads)):
                    table.row({"set": entry["name"], "of": quantity, **cells})
            right, count = entry.get("fastest stack named, and problems where two differ") or (0, 0)
            if count:
                print(f"{entry['name']}: the fastest backend is named in {right / count:.1%} of {count} problems")
    shipped = sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in (".json", ".trees"))
    print(f"models that ship: {shipped / 1e6:.2f} MB")


def _gpus(heads: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """Yield rows for each recorded GPU: held-out problems in total, held-out problems per backend, held-out sizes."""
    for gpu, head in heads.items():
        if "rows" in head:  # Skip heads for GPUs without recordings.
            folds = "problems" if head.get("folds left out") == FOLDS else "a fifth of the problems"
            figures = (head.get(f"{name}, problems left out") for name in (_ERROR, _P90, "coverage"))
            yield _cells(folds, gpu, head["rows"], *figures)
            if len(head["by stack"]) > 1:
                yield from (_cells(f"  {backend}", gpu, None, error) for backend, error in head["by stack"].items())
            if sizes := head.get(f"{_ERROR}, sizes left out"):
                yield _cells("sizes", gpu, None, sizes)


def _held_out_gpus(heads: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """Yield table rows for each GPU, predicted by trees that were trained without this GPU or its architecture."""
    for head in heads.values():
        for gpu, error in head.get(f"{_ERROR}, GPU held out", {}).items():
            yield _cells("sibling", gpu, None, error)
    other = heads.get(OTHER, {})
    for gpu, error in other.get(f"{_ERROR}, card left out", {}).items():
        p90, share = other.get(f"{_P90}, card left out", {}).get(gpu), other["coverage, card left out"]
        yield _cells("GPU", gpu, heads[gpu]["rows"], error, p90, share[find_gpu(gpu).arch])
        if bound := other.get("median error of the bound"):
            yield _cells("  the bound only", gpu, None, bound[gpu])


def _cells(
    held_out: str, gpu: str, rows: int | None, error: float | None, p90: float | None = None,
    share: float | None = None,
) -> dict[str, object]:  # fmt: skip
    figures = {"error": error, "p90": p90, "inside": share}
    texts = {title: None if value is None else f"{value:.1%}" for title, value in figures.items()}
    return {"held out": held_out, "GPU": gpu, "rows": rows, **texts}
