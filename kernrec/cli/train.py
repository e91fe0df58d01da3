"""`kernrec train`: train models, or calibrate the analytical model, from the measurements of a database."""

from typing import TYPE_CHECKING, Annotated, Any

from kernrec.cli import options
from kernrec.cli.format import print_notes
from kernrec.cli.options import option
from kernrec.cli.output import AsJson, print_json
from kernrec.cli.steps import Steps
from kernrec.cli.table import print_table

if TYPE_CHECKING:
    from kernrec.training.load_measurements import MeasurementRequest


class MeasuredOptions(options.Options):
    """Options that select measurements."""

    op: Annotated[str | None, option("Only this op (`kernrec list ops`).", "--op")] = None  # type: ignore[assignment]
    kernel: Annotated[str | None, option("Only this kernel, such as one of yours.")] = None

    @property
    def measurements(self) -> "MeasurementRequest":
        """Return the selected measurements."""
        from kernrec.training.load_measurements import MeasurementRequest

        return MeasurementRequest(tuple(self.databases or ()), self.op, None, self.kernel)


class TrainOptions(options.Options):
    databases_used = options.SEVERAL
    measured: MeasuredOptions
    calibrate: Annotated[bool, option("Fit coefficients of the analytical model instead.", "--calibrate")] = False
    as_json: AsJson = False


@options.takes(TrainOptions)
def train(wanted: TrainOptions) -> None:
    """Train a model for each measured op; `kernrec recommend` then uses it. Models are kept beside the database.

    With --calibrate, fit the coefficients of the analytical model to the measurements instead.
    """
    measurements = wanted.measured.measurements
    results = _calibrate(measurements) if wanted.calibrate else _train(measurements)
    if wanted.as_json:
        print_json(results)
        return
    for result in results:
        figures = result["calibration" if wanted.calibrate else "figures"]
        if figures is None:
            continue
        rows = [(name, f"{v:.4g}" if isinstance(v, float) else str(v)) for name, v in figures.items()]
        print_table(f"{result['name']}: {result['path']}", [("figure", "left"), ("value", "left")], rows)


def _train(measurements: "MeasurementRequest") -> list[dict[str, Any]]:
    from kernrec.training.boosting import TrainingSettings
    from kernrec.training.train_op_models import train_op_models

    with Steps("reading measurements") as steps:
        models, notes = train_op_models(measurements, None, TrainingSettings(), steps.step)
    print_notes(notes)
    return [{**vars(model), "path": str(model.path)} for model in models]


def _calibrate(measurements: "MeasurementRequest") -> list[dict[str, Any]]:
    from kernrec.training.fit_calibration import calibrate_prior

    with Steps("fitting coefficients"):
        path, fits, notes = calibrate_prior(measurements)
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
