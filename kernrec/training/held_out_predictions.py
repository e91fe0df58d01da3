"""Predict the costs of held-out measured problems by several methods, for `kernrec evaluate`.

learned      a model trained on the measurements that are not held out
calibrated   the analytical model with a calibration fitted to these measurements, if the calibration helps
predicted    the analytical model without calibration
occupancy    a heuristic that prefers the most resident warps and, in a tie, the largest block
random       scored without predictions
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.model.analytical.calibration import Calibration
from kernrec.model.learn.model import Model
from kernrec.recommender.estimate.correction import interval_of
from kernrec.training.boosting import TrainingSettings
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.fit_calibration import fit, predict_group
from kernrec.training.scores import each_fold, group_folds
from kernrec.training.train_model import train

Array = np.ndarray

FEWEST = 8
"""Minimum number of measured configs of a scored problem. Fewer configs would leave little choice."""
SPLITS = ("problem", "gpu", "kernel")
"""Kinds of groups that are held out as a whole."""
_FOLDS = 5
"""Maximum number of folds. If there are more groups, several share a fold."""


@dataclass(frozen=True)
class HeldOutProblem:
    """Measurements and predictions of C configs for one problem on one GPU. Several kernels may share the problem."""

    gpu: str
    problem: str
    latency_s: Array
    """Measured latency of each config in seconds."""
    energy_j: Array
    """Measured energy of each config in joules, or NaN."""
    predicted: dict[str, dict[str, Array]] = field(default_factory=dict)
    """Predicted cost of each config, keyed by method, then by quantity (`latency` or `energy`)."""
    low: dict[str, Array] = field(default_factory=dict)
    """Lower ends of the 90 % intervals of `learned`, keyed by quantity."""
    high: dict[str, Array] = field(default_factory=dict)
    """Upper ends of the 90 % intervals of `learned`, keyed by quantity."""
    kernel: tuple[str, ...] = ()

    def measured(self, quantity: str) -> Array:
        """Return the measured `latency`, `energy` or `edp` (their product) of each config."""
        costs: dict[str, Array] = {
            "latency": self.latency_s, "energy": self.energy_j, "edp": self.latency_s * self.energy_j
        }  # fmt: skip
        return costs[quantity]

    def expected(self, method: str, quantity: str) -> Array | None:
        """Return the cost that a method predicts for each config, or None if a value is missing."""
        if method not in self.predicted:
            return None
        costs = self.predicted[method]
        if quantity != "edp":
            expected = costs[quantity]
        elif method == "occupancy":  # Occupancy ranks every quantity alike.
            expected = costs["latency"]
        else:
            expected = costs["latency"] * costs["energy"]
        return expected if np.isfinite(expected).all() else None


_Fold = tuple[Model | None, Mapping[str, Calibration]]
"""Model, and calibrations keyed by architecture, fitted without the measurements of one fold. The model is None if
there are too few rows."""


def held_out_problems(
    groups: Sequence[RowGroup], split: str, settings: TrainingSettings, progress: Callable[[str], None]
) -> tuple[list[HeldOutProblem], int]:
    """Predict every problem with enough measured configs. Models are fitted without the problem, GPU or kernel
    (`split`). Return (predicted problems, number of distinct problems, GPUs or kernels). `groups` contains inputs of
    the uncalibrated model. `progress` receives a sentence for each fold."""
    parts = sorted({_part(group, split) for group in groups})
    folds: dict[str, _Fold] = {}
    if len(parts) > 1:
        fold_of_part = group_folds(np.arange(len(parts)), _FOLDS)
        for number, mask in enumerate(each_fold(fold_of_part), start=1):
            held_out = set(np.array(parts)[mask].tolist())
            progress(f"fold {number}: {len(held_out)} of {len(parts)} {split}s held out")
            rest = [group for group in groups if _part(group, split) not in held_out]
            try:
                model = train(Dataset(tuple(rest)), settings)
            except UsageError as error:
                model = None
                progress(f"fold {number}: no learned estimate is scored: the other folds have {error}")
            folds |= dict.fromkeys(held_out, (model, _calibrations(rest)))
    problems = []
    for key in sorted({(group.gpu, group.problem) for group in groups}):
        members = [group for group in groups if (group.gpu, group.problem) == key]
        if sum(map(len, members)) >= FEWEST:
            problems.append(_predict(members, [folds.get(_part(group, split)) for group in members]))
    return problems, len(parts)


def _part(group: RowGroup, split: str) -> str:
    # Problems that differ only in dtype or layout are held out together.
    return {"problem": group.dims, "gpu": group.gpu, "kernel": group.kernel}[split]


def _calibrations(groups: Sequence[RowGroup]) -> dict[str, Calibration]:
    try:
        return {result.arch: result.calibration for result in fit(groups) if result.calibration}
    except KernrecError:  # Too few rows to calibrate.
        return {}


def _predict(groups: list[RowGroup], folds: list[_Fold | None]) -> HeldOutProblem:
    pairs = list(zip(groups, [fold or (None, {}) for fold in folds], strict=True))
    of_groups = [_costs(group, *fold) for group, fold in pairs]
    predicted = {
        method: {quantity: np.concatenate([costs[method][quantity] for costs in of_groups]) for quantity in quantities}
        for method, quantities in of_groups[0].items()
        if all(method in costs for costs in of_groups)
    }
    # Without source code, every config gets the same latency (the roofline), which ranks nothing.
    if np.ptp(predicted["predicted"]["latency"]) == 0:
        del predicted["predicted"]
    if not any(group.inputs.gpu.arch in calibrations for group, (_, calibrations) in pairs):
        del predicted["calibrated"]
    low, high = predicted.pop("low", {}), predicted.pop("high", {})
    latency_s, energy_j = (np.concatenate([getattr(g, name) for g in groups]) for name in ("latency_s", "energy_j"))
    kernels = tuple(group.kernel for group in groups for _ in range(len(group)))
    return HeldOutProblem(groups[0].gpu, groups[0].problem, latency_s, energy_j, predicted, low, high, kernels)


def _costs(
    group: RowGroup, model: Model | None, calibrations: Mapping[str, Calibration]
) -> dict[str, dict[str, Array]]:
    """Return the predicted latency and energy of a group, keyed by method, then by quantity. The methods `low` and
    `high` are the ends of the interval of the method `learned`."""
    inputs, rank = group.inputs, _occupancy_rank(group)
    analytical = {"latency": inputs.latency_s, "energy": inputs.latency_s * inputs.power_w}
    calibration = calibrations.get(inputs.gpu.arch)
    calibrated = predict_group(group, calibration) if calibration and np.isfinite(inputs.core_s).all() else analytical
    costs = {"predicted": analytical, "calibrated": calibrated, "occupancy": {"latency": rank, "energy": rank}}
    if model is None:
        return costs
    gpu = group.gpu if group.gpu in model.gpus else None
    ratios, distance = model.log_ratio(inputs, gpu is not None)
    latency = inputs.latency_s * np.exp(ratios["latency"])
    learned = {"latency": latency, "energy": latency * inputs.power_w * np.exp(ratios.get("power", 0.0))}
    costs |= {"learned": learned, "low": {}, "high": {}}
    # Use the interval that users see. It depends on whether the GPU and the kernel are in the training data.
    trained = model.kernels.get(group.kernel) == group.kernel_hash
    for quantity, values in learned.items():
        interval = interval_of(model, quantity, gpu, group.dtype, trained, group.row_kind)
        costs["low"][quantity], costs["high"][quantity] = interval.around(values, distance)
    return costs


def _occupancy_rank(group: RowGroup) -> Array:
    """Rank configs by resident warps, then by block size, largest first. The rank is NaN if the occupancy is
    unknown."""
    warps = np.ceil(group.inputs.threads / 32.0)
    return 1.0 / (group.inputs.resident * warps * 4096.0 + warps + 1.0)
