"""Train and store a model for each op from the measurements in databases, for `kernrec train`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.model.learn.conformal import NEW_GPU, NEW_KERNEL, groups_needed
from kernrec.model.learn.model import Model
from kernrec.model.learn.model_file import save
from kernrec.training.dataset import Dataset
from kernrec.training.load_measurements import MeasurementRequest, load_measurements, provenance
from kernrec.training.train_model import train
from kernrec.util.optional import require_optional


@dataclass(frozen=True)
class StoredModel:
    name: str
    """Op, or `<op>@<gpu>` for a model of one GPU."""
    path: Path
    """Path of the model card."""
    rows: int
    figures: dict[str, float | str]
    """Scores on held-out groups, and descriptions of the 90 % intervals, keyed by name."""


def train_op_models(
    request: MeasurementRequest, progress: Callable[[str, float, float], None] = lambda *_: None
) -> tuple[list[StoredModel], list[str]]:
    """Train and store a model for each op that has measurements. Return (stored models, notes for the user). Raise
    `UsageError` if every op has too few measurements.

    Args:
        progress: Function that receives a sentence, the number of rows trained so far, and the number of all rows.
    """
    require_optional(("xgboost", "sklearn"), "training a model", "train")
    measurements = load_measurements(request)
    kernel = request.kernel
    if kernel is not None and (shared := sorted({group.op for group in measurements.groups} - {kernel})):
        raise UsageError(f"{kernel} implements {shared[0]}, whose kernels share a model: train --op {shared[0]}")
    notes = list(measurements.notes)
    models: list[StoredModel] = []
    too_few: list[str] = []
    rows, rows_before = len(Dataset(measurements.groups)), 0
    for op in sorted({group.op for group in measurements.groups}):
        data = Dataset(tuple(group for group in measurements.groups if group.op == op))
        name = op if measurements.gpu is None else f"{op}@{measurements.gpu}"
        progress(f"training {name} on {len(data)} measured configs", rows_before, rows)
        rows_before += len(data)
        try:
            model = train(data)
        except UsageError as error:
            too_few.append(f"{name}: {error}")
            continue
        path = save(model, measurements.models_folder, name, provenance(data, measurements))
        notes += _notes(name, data)
        models.append(StoredModel(name, path, len(data), dict(model.scores) | _stated_intervals(model)))
    if not models:
        raise UsageError("; ".join(too_few))
    return models, [*notes, *(f"{reason}; no model was trained for it" for reason in too_few)]


def _notes(name: str, data: Dataset) -> list[str]:
    kind, groups = data.held_out
    notes = []
    if kind != "problem":
        notes.append(
            f"{name}: too few problems to hold out, so {kind}s were held out; its error on new shapes is unknown"
        )
    problems = int(groups.max()) + 1 if kind == "problem" else 0
    if (missing := groups_needed() - problems) > 0:
        notes.append(
            f"{name}: {problems} held-out problems are too few to calibrate a 90 % interval, {missing} more are needed;"
            " until then the analytical model's interval counts as one more problem"
        )
    return notes


def _stated_intervals(model: Model) -> dict[str, float | str]:
    return {
        f"90 % interval of {quantity}, {'new problem' if key == '*' else key}": (
            f"a factor of {math.exp(interval.width):.3g}, from {interval.summary}"
        )
        for quantity, intervals in model.intervals.items()
        for key, interval in intervals.items()
        if key in ("*", NEW_GPU, NEW_KERNEL)
    }
