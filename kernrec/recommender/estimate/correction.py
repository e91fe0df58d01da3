"""Correct costs that the analytical model predicts, with a model trained on measurements.

Decision trees evaluate only the most promising candidates. All other candidates are scaled alike, so that optimistic
predictions do not rank them first. Measurements of the problem also correct configs that were not measured.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.model.analytical.launch_costs import LimitedCosts
from kernrec.model.learn.conformal import (
    NEW_GPU,
    NEW_KERNEL,
    Interval,
    groups_needed,
    on_dtype,
    on_rows,
    unknown_interval,
)
from kernrec.model.learn.features import QUANTITIES, ModelInputs, row_kind
from kernrec.model.learn.model import Model, learned_model, top1_score, transfer_score
from kernrec.model.learn.model_file import problem_count
from kernrec.recommender.estimate.costs import (
    ENERGY,
    LATENCY,
    LEARNED,
    OWN,
    POWER,
    TRANSFERRED,
    Costs,
    kinds_of,
)
from kernrec.recommender.estimate.static_table import Array, StaticTable
from kernrec.store import MeasuredAnswer
from kernrec.util.human import Note
from kernrec.util.light_dataclass import dataclass


def inputs_of(
    table: StaticTable,
    rows: Array,
    limited: LimitedCosts,
    costs: Any,
    positions: Array,
    number: int = 0,
    start: int = 0,
) -> ModelInputs:
    """Return a trained model's inputs for some of the C configs of a kernel on one problem.

    Args:
        rows: index of each config in the kernel's space, (C,).
        limited: costs of the C configs under the power limit.
        costs: the engine's `Costs`, which contain the configs.
        positions: indices in `rows` of the wanted configs.
        number: index of the kernel in `costs`.
        start: index of the first of the C configs among all configs of the kernel in `costs`.
    """
    quantities = np.empty((len(QUANTITIES), len(positions)))
    costs.fill(number, start, positions, np.stack(limited[:-1]), quantities)
    tunables = {t.name: table.space.columns[t.name].take(rows.take(positions)) for t in table.kernel.tunables}
    return ModelInputs(table.gpu, quantities, tunables)


FEWEST, MOST = 5, 64
"""Minimum and maximum number of measurements that adapt a model to a problem."""


@dataclass(frozen=True)
class TrainedModel:
    """Trained model, with its name and a description of its training data."""

    model: Model
    name: str
    training: Mapping[str, Any]
    shipped: bool = False

    @property
    def summary(self) -> str:
        """One-line description of the training data."""
        rows, problems = self.training["rows"], problem_count(self.training)
        configs = f"{rows} configs of {problems} problem{'s' * (problems != 1)} on {', '.join(self.model.gpus)}"
        recorded = f", recorded by others: {self.training['recorded']}" if "recorded" in self.training else ""
        return f"{configs}{recorded}" + (" (ships with kernrec)" if self.shipped else "")

    def scope(self, gpu: GPU, kernel: Kernel, dtype: str) -> "ModelScope | None":
        """Return the scope of this model for a kernel and data type on a GPU, or None if the model does not apply.

        Tests on held-out kernels and GPUs decide whether the model applies to an unknown kernel or GPU.
        """
        model = self.model
        kernel_known, gpu_known = model.kernels.get(kernel.name) == kernel.hash, gpu.name in model.gpus
        if (not kernel_known and not model.helps_new_kernels) or (not gpu_known and not model.helps_new_gpus):
            return None
        return ModelScope(self, gpu.name, kernel.name, dtype, gpu_known, kernel_known)


@dataclass(frozen=True)
class ModelScope:
    """Trained model, with the kernel, GPU and data type to which it is applied."""

    trained: TrainedModel
    gpu: str
    kernel: str
    dtype: str
    gpu_known: bool
    kernel_known: bool
    """Whether the model was trained on this version of the kernel's source."""
    adapted_to: int = 0
    """Number of measurements on this GPU and problem to which the model was adapted."""
    beneath: "ModelScope | None" = None
    """Trained model that is applied before this model, or None if this model directly corrects the analytical model."""
    row_kind: str = ""
    """Alignment of the rows of the matrices, or empty for kernels that ignore alignment. See `features.row_kind`."""

    def __repr__(self) -> str:
        return f"<ModelScope {self.kernel} on {self.gpu}: {self.note}>"

    def after(self, measured: int) -> "ModelScope":
        """Return the scope after adaptation to a number of measurements of this problem."""
        adapted_to = min(measured, MOST) if measured >= FEWEST else 0
        return self if adapted_to == self.adapted_to else replace(self, adapted_to=adapted_to)

    @property
    def model(self) -> Model:
        return self.trained.model

    def interval(self, quantity: str) -> Interval:
        """Return the interval of the model's relative error in `latency` or `energy`, for problems not yet measured."""
        gpu = self.gpu if self.gpu_known else None
        return interval_of(self.model, quantity, gpu, self.dtype, self.kernel_known, self.row_kind)

    @property
    def note(self) -> Note:
        """Note on the model and its intervals."""
        trained = self.trained
        source = "learned" if self.gpu_known or self.adapted_to else "transferred"
        text = f"source {source}: model {trained.name}"
        corrects = "the analytical model"
        if self.beneath:
            corrects += f" after model {self.beneath.trained.name}"
        why = [f"It corrects {corrects} and was trained on {trained.summary}."]
        basis = self.interval("latency").summary
        if self.adapted_to:
            text += f", adapted to {self.adapted_to} configs measured on this problem"
            if self.adapted_to >= groups_needed():
                basis = "these configs, each held out"
        else:
            new = [self.gpu] * (not self.gpu_known) + [self.kernel] * (not self.kernel_known)
            text += f", trained without {' and '.join(new)}" if new else f", trained on {self.gpu}"
            why += [] if self.gpu_known else self._cost_of_new_gpu()
        return Note(text, " ".join([*why, f"90 % interval from {basis}."]))

    def _cost_of_new_gpu(self) -> list[str]:
        """Return a sentence on the model's loss of accuracy on held-out GPUs, or empty if no GPU was held out."""
        scores = self.model.scores
        names = top1_score(""), transfer_score("GPU"), "efficiency@1", "median latency error"
        if not all(name in scores for name in names):
            return []
        new_first, new_error, first, error = (float(scores[name]) for name in names)
        return [
            f"On held-out GPUs, the top recommendation reached {new_first:.3f} of the best speed, with an error of"
            f" {100 * new_error:.0f} %; on GPUs of the training, {first:.3f} and {100 * error:.0f} %."
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return a description of the model and its scope as plain values for JSON."""
        return {
            "name": self.trained.name,
            "kernel": self.kernel,
            "shipped": self.trained.shipped,
            "rows": self.trained.training["rows"],
            "problems": problem_count(self.trained.training),
            "recorded": self.trained.training.get("recorded"),
            "gpus": list(self.model.gpus),
            "data_sha256": self.trained.training["data_sha256"],
            "gpu_measured": self.gpu_known,
            "kernel_measured": self.kernel_known,
            "adapted_to_configs": self.adapted_to,
            "intervals": {
                quantity: vars(self.interval(quantity))
                | {"pooled_with_analytical_model": self.interval(quantity).pooled}
                for quantity in ("latency", "energy")
            },
        }


def interval_of(
    model: Model, quantity: str, gpu: str | None, dtype: str, kernel_known: bool, row_kind: str = ""
) -> Interval:
    """Return the widest interval that applies to a model's predictions.

    Predictions for a GPU or kernel without training data have wider intervals.

    Args:
        quantity: `latency` or `energy`.
        gpu: name of the GPU, or None if the model was not trained on this GPU.
        kernel_known: whether the model was trained on the kernel.
        row_kind: alignment of the rows of the problem's matrices (`features.row_kind`).
    """
    by_group = model.intervals.get(quantity, {})
    keys = [on_rows(gpu, dtype, row_kind), on_dtype(gpu, dtype), gpu, "*"] if gpu else ["*"]
    intervals = [next((by_group[key] for key in keys if key in by_group), unknown_interval("problem"))]
    if gpu is None:
        intervals.append(by_group.get(NEW_GPU) or unknown_interval("GPU"))
    if not kernel_known:
        intervals.append(by_group.get(NEW_KERNEL) or unknown_interval("kernel"))
    return max(intervals, key=lambda interval: interval.width)


class AppliedModel:
    """Trained model in the engine's form, for the configs of one static table."""

    def __init__(self, scope: ModelScope, table: StaticTable) -> None:
        space, self.scope = table.space, scope
        kinds = [row_kind(space.columns, row) for row in range(len(table))]
        self.by_row_kind = [replace(scope, row_kind=kind) for kind in dict.fromkeys(kinds)]
        """Scope for each alignment of the matrices' rows, in the order of the engine's indices."""
        numbers = {each.row_kind: number for number, each in enumerate(self.by_row_kind)}
        widths = [[each.interval(name).width for name in ("latency", "energy")] for each in self.by_row_kind]
        self.in_engine = learned_model(
            [(each.model, each.gpu_known) for each in (scope.beneath, scope) if each is not None],
            table.gpu,
            space.columns,
            [numbers[kind] for kind in kinds],
            LEARNED if scope.gpu_known else TRANSFERRED,
            np.array(widths, dtype=np.float64).reshape(-1, 2),
        )


def applied(scope: ModelScope, table: StaticTable) -> AppliedModel:
    """Return a model in the engine's form. The static table caches the result."""
    models: list[AppliedModel] = table.models
    for model in models:
        if model.scope is scope:
            return model
    models.append(AppliedModel(scope, table))
    return models[-1]


def adapted(
    predicted: Costs, scored: Array, features: Array, positions: Array, measured: Sequence[MeasuredAnswer]
) -> Costs:
    """Return a kernel's costs after adapting the trained model to measurements of the problem on this GPU.

    Args:
        predicted: costs of all candidates of the kernel at one operating point.
        scored: indices of the N candidates whose costs come from the trained model, ascending.
        features: features of the N candidates, (N, F).
        positions: indices of the measured candidates, a subset of `scored`.
        measured: measurements in the order of `positions`.
    """
    if len(positions) < FEWEST:
        return predicted
    from kernrec.model.learn.adaptation import adapt, thinned

    place = np.searchsorted(scored, positions)
    if len(place) > MOST:
        keep = thinned(len(place), MOST)
        place, measured = place[keep], [measured[i] for i in keep]
    candidates = scored[place]
    latency = np.array([row.latency_s for row in measured])
    energy = np.array([np.nan if row.energy_j is None else row.energy_j for row in measured])
    adaptations = {"latency": adapt(features[place], np.log(latency / predicted.values[LATENCY, candidates]))}
    has_energy = np.isfinite(energy)
    if has_energy.sum() >= FEWEST:
        residual = np.log(energy[has_energy] / predicted.values[ENERGY, candidates[has_energy]])
        adaptations["energy"] = adapt(features[place[has_energy]], residual)
    factors = {name: np.exp(adaptation.correction(features)) for name, adaptation in adaptations.items()}
    # Without energy measurements, keep the predicted power. Then energy changes by the same factor as latency.
    factors.setdefault("energy", factors["latency"])

    after = predicted
    for number, (quantity, estimates) in enumerate((("latency", predicted.latency), ("energy", predicted.energy))):
        value, adaptation = estimates.value[scored] * factors[quantity], adaptations.get(quantity)
        below, above, source, own = (estimates.by_kind(row)[scored] for row in range(4))
        source = np.where(source == TRANSFERRED, LEARNED, source)  # Adapted models count as learned.
        if adaptation is not None and adaptation.interval.groups >= groups_needed():
            low, high = adaptation.interval.around(value)
            below, above = value / low, high / value
        own = math.sqrt(OWN) * 0.5 * np.log(above * below)
        after = after.replaced(number, scored, value, kinds_of(below, above, source, own))
    after.values[POWER, scored] *= factors["energy"] / factors["latency"]
    return after
