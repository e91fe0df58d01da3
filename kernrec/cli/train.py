"""`kernrec train` and `kernrec evaluate`: train models from measurements, and score their recommendations."""

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from kernrec.cli import options
from kernrec.cli.options import option
from kernrec.cli.output import AsJson, print_json, print_notes, print_table
from kernrec.cli.progress import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernrec.training.evaluate_models import MethodScore
    from kernrec.training.load_measurements import MeasurementRequest


class MeasuredOptions(options.Options):
    """Options that select the measurements to train or evaluate with."""

    op: Annotated[str | None, option("Only this op (`kernrec list ops`).", "--op")] = None  # type: ignore[assignment]
    kernel: Annotated[str | None, option("Only this kernel.")] = None

    @property
    def measurements(self) -> "MeasurementRequest":
        from kernrec.training.load_measurements import MeasurementRequest

        return MeasurementRequest(tuple(self.databases or ()), self.op, None, self.kernel)


class TrainOptions(options.Options):
    databases_used = options.SEVERAL
    measured: MeasuredOptions
    calibrate: Annotated[bool, option("Fit the analytical model's coefficients instead.", "--calibrate")] = False
    as_json: AsJson = False


@options.takes(TrainOptions)
def train(wanted: TrainOptions) -> None:
    """Train a model for each op with measurements. `kernrec recommend` then uses the models.

    The models are stored beside the database. With --calibrate, the coefficients of the analytical model are fitted to
    the measurements instead.
    """
    from kernrec.training.train_op_models import train_op_models

    measurements = wanted.measured.measurements
    if wanted.calibrate:
        results = _calibrate(measurements)
    else:
        with Steps("reading measurements") as steps:
            models, notes = train_op_models(measurements, steps.step)
        print_notes(notes)
        results = [{**vars(model), "path": str(model.path)} for model in models]
    if wanted.as_json:
        print_json(results)
        return
    for result in results:
        figures = result["calibration" if wanted.calibrate else "figures"]
        if figures is None:
            continue
        rows = [(name, f"{v:.4g}" if isinstance(v, float) else str(v)) for name, v in figures.items()]
        print_table(f"{result['name']}: {result['path']}", ("figure", "value"), rows)


def _calibrate(measurements: "MeasurementRequest") -> list[dict[str, Any]]:
    from kernrec.training.fit_calibration import calibrate_analytical

    with Steps("fitting coefficients"):
        path, fits, notes = calibrate_analytical(measurements)
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


class EvaluateOptions(options.Options):
    databases_used = options.SEVERAL
    measured: MeasuredOptions
    split: Annotated[str, option("What to hold out: problem, gpu or kernel.")] = "problem"
    as_json: AsJson = False


@options.takes(EvaluateOptions)
def evaluate(wanted: EvaluateOptions) -> None:
    """Compare learned recommendations with simpler methods on the measured problems of a database.

    Whole problems, GPUs or kernels are held out, so all scores are for data that was not used for training. Stored
    calibrations are not used, because they were fitted to the held-out data, too. The coefficients are fitted again
    without this data.
    """

    from kernrec.training.evaluate_models import evaluate as run_evaluation

    request, split = wanted.measured.measurements, wanted.split
    evaluation = run_evaluation(request, split, lambda text: print_notes([text]))
    if wanted.as_json:
        scores = [asdict(score) for score in evaluation.scores]
        print_json(_nan_as_null({"split": split, "parts": evaluation.parts, "scores": scores}))
    else:
        _print_scores(evaluation.scores, f"held out by {split}: {evaluation.parts}")
    print_notes(evaluation.notes)


def _print_scores(scores: "Sequence[MethodScore]", title: str) -> None:
    rows = []
    for s in scores:
        values = [
            *s.efficiency.values(), s.accuracy, s.reduction, s.rank_correlation, s.median_error, s.coverage, s.width,
            s.front_recall, s.energy_saved, s.slowdown, s.lowest_energy_saved, s.lowest_energy_slowdown,
        ]  # fmt: skip
        shown = ["" if math.isnan(value) else f"{value:.3f}" for value in values]
        rows.append([s.quantity, s.method, str(s.problems), *shown])
    print_table(title, _COLUMNS, rows)


_COLUMNS = (
    "quantity", "method", "problems", "eff@1", "eff@5", "eff@10", "accuracy", "reduction", "rank corr.", "median error",
    "coverage", "width", "front recall", "energy saved vs. occupancy", "slowdown", "energy saved at 3 % slower",
    "slowdown",
)  # fmt: skip


def _nan_as_null(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _nan_as_null(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_nan_as_null(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
