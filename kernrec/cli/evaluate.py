"""`kernrec evaluate`: score recommendations on measured problems, against simpler ways to choose a config."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from kernrec.cli import options
from kernrec.cli.format import print_notes
from kernrec.cli.options import option
from kernrec.cli.output import AsJson, print_json
from kernrec.cli.table import print_table
from kernrec.cli.train import MeasuredOptions

if TYPE_CHECKING:
    from kernrec.training.evaluate_models import MethodScore


class EvaluateOptions(options.Options):
    databases_used = options.SEVERAL
    measured: MeasuredOptions
    split: Annotated[str, option("What is held out as a whole: problem, gpu or kernel.")] = "problem"
    as_json: AsJson = False


@options.takes(EvaluateOptions)
def evaluate(wanted: EvaluateOptions) -> None:
    """Compare learned recommendations with simpler ways to choose, on the measured problems of a database.

    Problems, GPUs or kernels are held out as a whole, so every score is on data that was not used for training. Stored
    calibrations have seen the held-out data and are not used; coefficients are fitted again to the remaining data.
    """
    from kernrec.training.boosting import TrainingSettings
    from kernrec.training.evaluate_models import evaluate as run_evaluation

    request, split = wanted.measured.measurements, wanted.split
    evaluation = run_evaluation(request, split, TrainingSettings(), progress=lambda text: print_notes([text]))
    if wanted.as_json:
        scores = [asdict(score) for score in evaluation.scores]
        print_json(_nan_as_null({"split": split, "parts": evaluation.parts, "scores": scores}))
    else:
        _print_scores(evaluation.scores, f"held out by {split}: {evaluation.parts}")
    print_notes(evaluation.notes)


def _print_scores(scores: "Sequence[MethodScore]", title: str) -> None:
    columns = [(name, "left" if name in ("quantity", "method") else "right") for name in _COLUMNS]
    rows = []
    for s in scores:
        values = [
            *s.efficiency.values(), s.accuracy, s.reduction, s.rank_correlation, s.median_error, s.coverage, s.width,
            s.front_recall, s.energy_saved, s.slowdown, s.lowest_energy_saved, s.lowest_energy_slowdown,
        ]  # fmt: skip
        shown = ["" if math.isnan(value) else f"{value:.3f}" for value in values]
        rows.append([s.quantity, s.method, str(s.problems), *shown])
    print_table(title, columns, rows)


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
