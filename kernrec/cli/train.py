"""`kernrec train`: a model of what devices did, from the measurements of a database."""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernrec.cli.table import print_table

if TYPE_CHECKING:
    from kernrec.training.load_measurements import Measurements

Databases = Annotated[list[Path] | None, typer.Option("--db", help="Database to read; may be repeated.")]
OpName = Annotated[str | None, typer.Option("--op", help="Only this op (`kernrec ops`).")]
GpuName = Annotated[str | None, typer.Option("--gpu", help="Only this GPU (`kernrec gpus`).")]
Threads = Annotated[int, typer.Option(min=1, help="Threads to train with.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def train(
    op: OpName = None,
    gpu: GpuName = None,
    db: Databases = None,
    out: Annotated[Path | None, typer.Option(help="Folder for models; `models` beside the database.")] = None,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Fit the prior's own coefficients instead.")] = False,
    threads: Threads = 2,
    as_json: AsJson = False,
) -> None:
    """Train a model of each op from measurements; `recommend` uses it from then on."""
    # Coefficients are refitted from those of data sheets, whatever was fitted before.
    paths, found, card = measurements(db, op, gpu, calibrated=not calibrate)
    folder = out or paths[0].parent / "models"
    results = _calibrate(found, folder, paths) if calibrate else _train(found, folder, card, paths, threads)
    if as_json:
        print(json.dumps(results, indent=2))
        return
    for result in results:
        if result["found"] is None:
            continue
        rows = [(name, f"{v:.4g}" if isinstance(v, float) else str(v)) for name, v in result["found"].items()]
        print_table(f"{result['name']}: {result['path']}", [("figure", "left"), ("value", "left")], rows)


def measurements(
    db: list[Path] | None, op: str | None, gpu: str | None, calibrated: bool = True
) -> "tuple[list[Path], Measurements, str | None]":
    """(databases, what they hold of an op and GPU, the GPU's catalog name); the user's own database where none is
    given."""
    from kernrec import paths
    from kernrec.errors import UsageError
    from kernrec.gpu import find_gpu
    from kernrec.op import find_op
    from kernrec.training.load_measurements import read

    card = None if gpu is None else find_gpu(gpu).name
    name = None if op is None else find_op(op).name
    databases = db or [paths.user_database()]
    found = read(databases, name, card, calibrated)
    for reason, count in found.left_out.items():
        note(f"{count} configs {reason} left out")
    if not found.groups:
        what = " ".join(["measurement", *(["of " + name] if name else []), *(["on " + card] if card else [])])
        raise UsageError(f"{', '.join(map(str, databases))}: no {what} to learn from")
    return databases, found, card


def note(text: str) -> None:
    """A note on standard error."""
    print(f"note: {text}", file=sys.stderr)


def _train(
    found: "Measurements", folder: Path, gpu: str | None, databases: list[Path], threads: int
) -> list[dict[str, Any]]:
    from kernrec.errors import UsageError
    from kernrec.model.learn.conformal import NEW_GPU, NEW_KERNEL, groups_needed
    from kernrec.model.learn.model_file import save
    from kernrec.training.boosting import TrainingSettings
    from kernrec.training.dataset import Dataset
    from kernrec.training.load_measurements import provenance
    from kernrec.training.train_model import train as learn

    results, too_few = [], []
    for op in sorted({group.op for group in found.groups}):
        data = Dataset(tuple(group for group in found.groups if group.op == op))
        name = op if gpu is None else f"{op}@{gpu}"
        try:
            model = learn(data, TrainingSettings(threads=threads))
        except UsageError as error:
            too_few.append(f"{name}: {error}")
            continue
        path = save(model, folder, name, provenance(data, databases, found.calibrations))
        kind, held = data.held_out
        groups = int(held.max()) + 1
        if kind != "problem":
            note(f"{name}: too few problems to hold out, so {kind}s were; nothing is known of new shapes")
        problems = groups if kind == "problem" else 0
        if (missing := groups_needed() - problems) > 0:
            note(
                f"{name}: {problems} held-out problems cannot calibrate a 90 % interval alone, {missing} more are"
                " needed; until then the prior's spread counts as one more"
            )
        # Several GPUs may have an interval of their own; what holds for all of them, and for new ones, is shown.
        stated = {
            f"90 % interval of {quantity}, {'new problem' if key == '*' else key}": (
                f"a factor of {math.exp(interval.width):.3g}, from {interval.said}"
            )
            for quantity, found_for in model.intervals.items()
            for key, interval in found_for.items()
            if key in ("*", NEW_GPU, NEW_KERNEL)
        }
        results.append({"name": name, "path": str(path), "rows": len(data), "found": dict(model.scores) | stated})
    if not results:
        raise UsageError("; ".join(too_few))
    for said in too_few:
        note(f"{said}; no model of it")
    return results


def _calibrate(found: "Measurements", folder: Path, databases: list[Path]) -> list[dict[str, Any]]:
    from kernrec.errors import UsageError
    from kernrec.model.prior.calibration import FILE, load, save
    from kernrec.training.dataset import Dataset
    from kernrec.training.fit_calibration import fit
    from kernrec.training.load_measurements import provenance

    fitted = fit(found.groups, provenance(Dataset(found.groups), databases, {}))
    try:
        before = load(folder)
    except UsageError as error:
        note(f"{error}; replaced")
        before = {}
    kept = {arch: calibration for arch, calibration in before.items() if arch not in {one.arch for one in fitted}}
    for one in fitted:
        for line in one.said:
            note(f"{one.arch}: {line}")
        if one.calibration is not None:
            kept[one.arch] = one.calibration
        else:
            dropped = "; the calibration that was there is dropped" if one.arch in before else ""
            note(f"{one.arch}: the data sheet's coefficients stay{dropped}")
    if kept != before:
        save(kept, folder)
        if len(list(folder.glob("*.json"))) > 1:
            note("a model corrects the prior that it was trained with; `kernrec train` renews what no longer fits")
    return [
        {
            "name": f"calibration of {one.arch}",
            "path": str(folder / FILE) if one.calibration else None,
            "found": None if one.calibration is None else one.calibration.about(),
            "said": list(one.said),
        }
        for one in fitted
    ]
