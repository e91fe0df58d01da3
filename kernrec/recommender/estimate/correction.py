"""Learned estimates: correct the analytical model with a trained model of measurements.

scope      the training data determine the width of the intervals: errors on held-out problems, GPUs or kernels
scored     the trees evaluate only the candidates with the lowest predicted latency or energy, to save time
the rest   scaled like the scored candidates, so that optimistic predictions do not rank them first
adapted    if configs were measured on this GPU and problem, the model's error on them corrects the others without
           training, in scale and in shape (`model.learn.adaptation`)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
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
from kernrec.model.learn.features import QUANTITIES, ModelInputs, of_tunables, plan_of, row_kind
from kernrec.model.learn.model import SHAPE, Model, top1_score, transfer_score
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
from kernrec.recommender.estimate.prediction import Prediction
from kernrec.recommender.estimate.static_table import Array, StaticTable
from kernrec.store import MeasuredAnswer
from kernrec.util.engine import query
from kernrec.util.human import Note
from kernrec.util.light_dataclass import dataclass


def inputs_of(prediction: Prediction, limited: LimitedCosts, positions: Array) -> ModelInputs:
    """Return the inputs of the candidates at some positions of a prediction and its costs."""
    table, quantities = prediction.table, np.empty((len(QUANTITIES), len(positions)))
    prediction.in_engine.fill(prediction.number, prediction.start, positions, limited.costs, quantities)
    configs = prediction.rows.take(positions)
    tunables = {t.name: table.space.columns[t.name].take(configs) for t in table.kernel.tunables}
    return ModelInputs.of(table.gpu, quantities, tunables)


FEWEST, MOST = 5, 64
"""Minimum number of a problem's measurements for adaptation, and the maximum number used."""


@dataclass(frozen=True)
class TrainedModel:
    """Trained model with its name and a description of its training data."""

    model: Model
    name: str
    training: Mapping[str, Any]
    shipped: bool = False
    """Whether the model ships with kernrec, instead of being trained by the user."""

    @property
    def summary(self) -> str:
        """Description of the training data."""
        rows, problems = self.training["rows"], problem_count(self.training)
        configs = f"{rows} configs of {problems} problem{'s' * (problems != 1)} on {', '.join(self.model.gpus)}"
        recorded = f", recorded by others: {self.training['recorded']}" if "recorded" in self.training else ""
        return f"{configs}{recorded}" + (" (ships with kernrec)" if self.shipped else "")

    def scope(self, gpu: GPU, kernel: Kernel, dtype: str) -> "ModelScope | None":
        """Return the model for a kernel of a data type on a GPU; None if it does not apply.

        A model applies to an unknown kernel or GPU only if models trained without it beat the analytical model on each
        held-out kernel, or on the held-out GPUs, respectively.
        """
        model = self.model
        kernel_known, gpu_known = model.kernels.get(kernel.name) == kernel.hash, gpu.name in model.gpus
        if (not kernel_known and not model.helps_new_kernels) or (not gpu_known and not model.helps_new_gpus):
            return None
        return ModelScope(self, gpu.name, kernel.name, dtype, gpu_known, kernel_known)


@dataclass(frozen=True)
class ModelScope:
    """Model applied to a kernel on a GPU."""

    trained: TrainedModel
    gpu: str
    kernel: str
    dtype: str
    gpu_known: bool
    """Whether the model was trained on this GPU."""
    kernel_known: bool
    """Whether the model was trained on this kernel with this source."""
    adapted_to: int = 0
    """Number of configs measured on this GPU and problem that the estimates were adapted to."""
    beneath: "ModelScope | None" = None
    """Model that corrects the analytical model before this one."""
    row_kind: str = ""
    """Kind of rows of the problem (`features.row_kind`); empty if the kernel has only one kind."""

    def __repr__(self) -> str:
        return f"<ModelScope {self.kernel} on {self.gpu}: {self.note}>"

    def after(self, measured: int) -> "ModelScope":
        """Return the scope, adapted to `measured` measurements on this GPU and problem if there are enough."""
        adapted_to = min(measured, MOST) if measured >= FEWEST else 0
        return self if adapted_to == self.adapted_to else replace(self, adapted_to=adapted_to)

    def on_rows(self, kind: str) -> "ModelScope":
        """Return a copy of the scope for a problem with this kind of rows."""
        if kind == self.row_kind:
            return self
        if (scope := self._by_rows.get(kind)) is None:
            scope = self._by_rows[kind] = replace(self, row_kind=kind)
        return scope

    @cached_property
    def _by_rows(self) -> "dict[str, ModelScope]":
        return {}

    @property
    def model(self) -> Model:
        """Model without its training data."""
        return self.trained.model

    def interval(self, quantity: str) -> Interval:
        """Return the widest interval of `latency` or `energy` that applies to unmeasured problems."""
        if (interval := self._intervals.get(quantity)) is None:
            gpu = self.gpu if self.gpu_known else None
            interval = interval_of(self.model, quantity, gpu, self.dtype, self.kernel_known, self.row_kind)
            self._intervals[quantity] = interval
        return interval

    @cached_property
    def _intervals(self) -> dict[str, Interval]:
        return {}

    @property
    def note(self) -> Note:
        """Note on the model, which answers show."""
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
        """Describe the accuracy on held-out GPUs and on trained GPUs; return nothing if no GPU was held out."""
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
        """Return plain values for JSON."""
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
                quantity: vars(self.interval(quantity)) | {"pooled_with_prior": self.interval(quantity).pooled}
                for quantity in ("latency", "energy")
            },
        }


def interval_of(
    model: Model, quantity: str, gpu: str | None, dtype: str, kernel_known: bool, row_kind: str = ""
) -> Interval:
    """Return the widest interval that applies to unmeasured problems.

    An interval for the kind of rows on the GPU takes precedence, then an interval for the data type.

    Args:
        model: the model.
        quantity: `latency` or `energy`.
        gpu: name of the GPU; None if the model was not trained on it.
        dtype: data type of the problem.
        kernel_known: whether the model was trained on the kernel.
        row_kind: kind of rows of the problem.
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
    """Model applied to a table: the engine's form, and the scope for each kind of rows."""

    def __init__(self, scope: ModelScope, table: StaticTable) -> None:
        space, self.scope = table.space, scope
        kinds = [row_kind(space.columns, row) for row in range(len(table))]
        self.by_row_kind = [scope.on_rows(kind) for kind in dict.fromkeys(kinds)]
        """Scope for each of the engine's numbers of a kind of rows."""
        numbers = {each.row_kind: number for number, each in enumerate(self.by_row_kind)}
        layers, different_gpu = [], []
        for each in (scope.beneath, scope):
            if each is not None:
                model = each.model
                parts = model.parts(each.gpu_known)
                trees = [model.forests[part].in_engine for part in parts]
                of_space = of_tunables(space.columns, model.columns, len(space))
                plan = plan_of(table.gpu, model.columns)
                layers.append((plan, of_space, model.extent.in_engine, trees[0], trees[1] if trees[1:] else None))
                different_gpu.append(parts == (SHAPE,))
        widths = [[each.interval(name).width for name in ("latency", "energy")] for each in self.by_row_kind]
        self.in_engine = query.LearnedModel(
            layers,
            different_gpu,
            not (scope.gpu_known and (scope.beneath is None or scope.beneath.gpu_known)),
            table.gpu.memory_bandwidth,
            table.gpu.boost_clock_hz,
            LEARNED if scope.gpu_known else TRANSFERRED,
            unknown_interval("problem").width,
            [numbers[kind] for kind in kinds],
            np.array(widths, dtype=np.float64).reshape(-1, 2),
        )


def applied(scope: ModelScope, table: StaticTable) -> AppliedModel:
    """Return a model in the form for a table, cached in the table."""
    models: list[AppliedModel] = table.models
    for model in models:
        if model.scope is scope:
            return model
    models.append(AppliedModel(scope, table))
    return models[-1]


def adapted(
    predicted: Costs, scored: Array, features: Array, positions: Array, measured: Sequence[MeasuredAnswer]
) -> Costs:
    """Return a model's costs, adapted to the measurements on this GPU and problem.

    With fewer than `FEWEST` measurements, only the common scale in `costs.with_measured` applies.

    Args:
        predicted: costs of candidates at one operating point.
        scored: candidates that the model evaluated, ascending, (N,).
        features: their features, (N, F).
        positions: measured candidates, a subset of `scored`.
        measured: their measurements, in the same order.
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
    # Without measured energy, the power is not corrected.
    factors.setdefault("energy", factors["latency"])

    after = predicted
    for number, (quantity, estimates) in enumerate((("latency", predicted.latency), ("energy", predicted.energy))):
        value, adaptation = estimates.value[scored] * factors[quantity], adaptations.get(quantity)
        below, above, source, own = (estimates.by_kind(row)[scored] for row in range(4))
        source = np.where(source == TRANSFERRED, LEARNED, source)  # The model now uses rows of this GPU.
        if adaptation is not None and adaptation.interval.groups >= groups_needed():
            low, high = adaptation.interval.around(value)
            below, above = value / low, high / value
        own = math.sqrt(OWN) * 0.5 * np.log(above * below)
        after = after.replaced(number, scored, value, kinds_of(below, above, source, own))
    after.values[POWER, scored] *= factors["energy"] / factors["latency"]
    return after
