"""`kernrec train`: train models, or calibrate the prior, from the measurements of a database."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernrec.cli.format import print_notes
from kernrec.cli.steps import Steps
from kernrec.cli.table import print_table

if TYPE_CHECKING:
    from kernrec.training.load_measurements import MeasurementRequest

Databases = Annotated[
    list[Path] | None, typer.Option("--db", help="Database to read; may be repeated. Default: your own database.")
]
OpName = Annotated[str | None, typer.Option("--op", help="Only this op (`kernrec ops` lists them).")]
KernelName = Annotated[str | None, typer.Option("--kernel", help="Only this kernel, such as one of your own.")]
GpuName = Annotated[str | None, typer.Option("--gpu", help="Only this GPU (`kernrec gpus` lists them).")]
Threads = Annotated[int, typer.Option(min=1, metavar="<int>", help="Number of threads used for training.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def train(
    op: OpName = None,
    gpu: GpuName = None,
    kernel: KernelName = None,
    db: Databases = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to store models in. Default: `models` beside the database.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Calibrate the coefficients of the analytic prior instead.")
    ] = False,
    threads: Threads = 2,
    as_json: AsJson = False,
) -> None:
    """Train a model for each measured op; `kernrec recommend` then uses it.

    With --calibrate, fit the coefficients of the analytic prior to the measurements instead.
    """
    measurements = measurement_request(db, op, gpu, kernel)
    results = _calibrate(measurements, out) if calibrate else _train(measurements, out, threads)
    if as_json:
        print(json.dumps(results, indent=2))
        return
    for result in results:
        figures = result["calibration" if calibrate else "figures"]
        if figures is None:
            continue
        rows = [(name, f"{v:.4g}" if isinstance(v, float) else str(v)) for name, v in figures.items()]
        print_table(f"{result['name']}: {result['path']}", [("figure", "left"), ("value", "left")], rows)


def measurement_request(
    db: list[Path] | None, op: str | None, gpu: str | None, kernel: str | None
) -> "MeasurementRequest":
    """The request for the measurements that the options --db, --op, --gpu and --kernel name."""
    from kernrec.training.load_measurements import MeasurementRequest

    return MeasurementRequest(tuple(db or ()), op, gpu, kernel)


def _train(measurements: "MeasurementRequest", folder: Path | None, threads: int) -> list[dict[str, Any]]:
    from kernrec.training.boosting import TrainingSettings
    from kernrec.training.train_op_models import train_op_models

    with Steps("reading measurements") as steps:
        models, notes = train_op_models(measurements, folder, TrainingSettings(threads=threads), steps.step)
    print_notes(notes)
    return [{**vars(model), "path": str(model.path)} for model in models]


def _calibrate(measurements: "MeasurementRequest", folder: Path | None) -> list[dict[str, Any]]:
    from kernrec.training.fit_calibration import calibrate_prior

    with Steps("fitting coefficients"):
        path, fits, notes = calibrate_prior(measurements, folder)
    print_notes(notes)
    return [
        {
            "name": f"calibration of {fit.arch}",
            "path": str(path) if fit.calibration else None,
            "calibration": None if fit.calibration is None else fit.calibration.as_dict(),
            "findings": list(fit.findings),
        }
        for fit in fits
    ]
