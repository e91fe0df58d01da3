"""Learned estimates: the prior corrected by a model of what devices did, where one was trained.

reach      what a model knows of a GPU and kernel says how wide its intervals are: those of problems, GPUs or kernels
           that were held out
scored     the candidates that the prior finds fastest and most frugal; trees for more would take too long
the rest   put on the scale of those scored, so that a prior that is too low does not place them before
adapted    where some configs were measured on this very GPU and problem, the model's error there corrects the
           others at once, in scale and in shape (`model.adapt`), with nothing trained again
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernrec.gpu import GPU
from kernrec.kernel import Kernel, SpaceAt
from kernrec.model.learn.adaptation import adapt, thinned
from kernrec.model.learn.conformal import NEW_GPU, NEW_KERNEL, Interval, groups_needed, unknown_interval
from kernrec.model.learn.model import Model
from kernrec.model.prior.power import LimitedCosts
from kernrec.op import Problem
from kernrec.recommender.estimate.candidates import Candidates, Prediction
from kernrec.recommender.estimate.estimates import LEARNED, Estimates
from kernrec.recommender.estimate.model_inputs import features_of, inputs_of
from kernrec.store import MeasuredAnswer

Array = np.ndarray

SCORED = 64
"""Candidates that the trees are asked about."""

FEWEST, MOST = 5, 64
"""Measurements of a problem from which on its other configs are adapted, and how many are looked at."""


@dataclass(frozen=True)
class Learned:
    """A model with its name and what it was trained on. shipped: with kernrec, not trained here."""

    model: Model
    name: str
    training: Mapping[str, Any]
    shipped: bool = False

    @property
    def summary(self) -> str:
        """What it was trained on."""
        rows, problems = self.training["rows"], len(self.training["problems"])
        configs = f"{rows} configs of {problems} problem{'s' * (problems != 1)}"
        return f"{configs} on {', '.join(self.model.gpus)}" + (" (ships with kernrec)" if self.shipped else "")

    def reach(self, gpu: GPU, kernel: Kernel) -> "Reach | None":
        """What it knows of a kernel on a GPU; None where it has nothing to say.

        Of a kernel that it was not trained on it speaks only where models of other kernels were better than the prior
        on each that was held out.
        """
        model = self.model
        known = model.kernels.get(kernel.name) == kernel.hash
        if not known and not model.helps_new_kernels:
            return None
        return Reach(self, gpu.name, kernel.name, gpu.name in model.gpus, known)


@dataclass(frozen=True)
class Reach:
    """A model asked about a kernel on a GPU. gpu_known, kernel_known: whether it was trained on them.

    adapted_to: configs measured on this very GPU and problem that its answers were adapted to.
    """

    learned: Learned
    gpu: str
    kernel: str
    gpu_known: bool
    kernel_known: bool
    adapted_to: int = 0

    def after(self, measured: int) -> "Reach":
        """The same, where so many configs were measured on this GPU and problem; a few adapt nothing."""
        return replace(self, adapted_to=min(measured, MOST) if measured >= FEWEST else 0)

    @property
    def model(self) -> Model:
        """The model itself."""
        return self.learned.model

    def interval(self, quantity: str) -> Interval:
        """The interval of `latency` or `energy` on problems that were not measured: the widest that applies."""
        return interval_of(self.model, quantity, self.gpu if self.gpu_known else None, self.kernel_known)

    @property
    def said(self) -> str:
        """What a reader has to know of it, in a line."""
        what = f"source learned: the prior corrected by model {self.learned.name}, trained on {self.learned.summary}"
        new = [
            *([] if self.gpu_known else [f"nothing was measured on {self.gpu}"]),
            *([] if self.kernel_known else [f"nothing of {self.kernel}"]),
        ]
        stands_on = self.interval("latency").summary
        if self.adapted_to:
            new = [f"adapted to {self.adapted_to} configs measured on this problem"]
            if self.adapted_to >= groups_needed():
                stands_on = "those, each left out"
        return "; ".join([what, *new, f"90 % interval from {stands_on}"])

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.learned.name,
            "kernel": self.kernel,
            "shipped": self.learned.shipped,
            "rows": self.learned.training["rows"],
            "problems": len(self.learned.training["problems"]),
            "gpus": list(self.model.gpus),
            "data_sha256": self.learned.training["data_sha256"],
            "gpu_measured": self.gpu_known,
            "kernel_measured": self.kernel_known,
            "adapted_to_configs": self.adapted_to,
            "intervals": {
                quantity: vars(self.interval(quantity)) | {"pooled_with_prior": self.interval(quantity).pooled}
                for quantity in ("latency", "energy")
            },
        }


def interval_of(model: Model, quantity: str, gpu: str | None, kernel_known: bool) -> Interval:
    """The widest interval that applies on problems that were not measured; gpu: None for one not trained on."""
    found = model.intervals.get(quantity, {})
    given = [(gpu and found.get(gpu)) or found.get("*") or unknown_interval("problem")]
    if gpu is None:
        given.append(found.get(NEW_GPU) or unknown_interval("GPU"))
    if not kernel_known:
        given.append(found.get(NEW_KERNEL) or unknown_interval("kernel"))
    return max(given, key=lambda interval: interval.width)


@dataclass(frozen=True)
class Correction:
    """What a model says of candidates: log(expected / prior) at positions `where`, and how far they lie outside.

    rows: their features (len(where), F).
    """

    reach: Reach
    where: Array
    rows: Array
    ratios: Mapping[str, Array]
    distance: Array

    @classmethod
    def of(
        cls,
        reach: Reach,
        candidates: Candidates,
        problem: Problem,
        at: SpaceAt,
        prediction: Prediction,
        limited: LimitedCosts,
        where: Array,
    ) -> "Correction":
        """The model's answer about the candidates at positions `where` of a prediction and its costs."""
        inputs = inputs_of(candidates, problem, at, prediction, limited, where)
        rows = features_of(candidates, reach.model.columns, inputs, prediction.rows.take(where))
        return cls(reach, where, rows, *reach.model.log_ratio(rows))

    def correct(self, predicted: Estimates) -> Estimates:
        """The estimates with the model's in their place."""
        return with_learned(predicted, self.reach, self.where, self.ratios, self.distance)

    def adapted(self, predicted: Estimates, positions: Array, measured: Sequence[MeasuredAnswer]) -> Estimates:
        """Corrected estimates in the light of what was measured on this GPU and problem, at `positions`."""
        return adapted(predicted, self.where, self.rows, positions, measured)


def worth_scoring(estimates: Estimates, always: Array) -> Array:
    """Positions of the candidates that the trees are asked about, ascending: the most promising, and those of `always`.

    All, where enough were measured to say that others are promising than the prior thinks; that takes milliseconds.
    """
    count = len(estimates.latency_s)
    if count <= SCORED or len(always) >= FEWEST:
        return np.arange(count)
    chosen = np.zeros(count, dtype=bool)
    for cost in (estimates.latency_s, estimates.energy_j):
        chosen[np.argpartition(cost, SCORED // 2)[: SCORED // 2]] = True
    chosen[always] = True
    return np.flatnonzero(chosen)


def with_learned(
    predicted: Estimates, reach: Reach, where: Array, ratios: Mapping[str, Array], distance: Array
) -> Estimates:
    """The estimates with the model's at positions `where`; ratios, distance: as from `Model.log_ratio`."""
    latency_log = ratios["latency"]
    power_log = ratios.get("power", np.zeros(len(where)))
    columns = {name: column.copy() for name, column in vars(predicted).items()}
    # A model without measured power says nothing new of it: energy remains the prior's power for the learned time.
    shift = {
        "latency_s": latency_log,
        "power_w": power_log,
        "energy_j": latency_log + power_log,
    }
    for name, log in shift.items():
        factor = np.full(len(predicted.latency_s), math.exp(_median(log)))
        factor[where] = np.exp(log)
        columns[name] *= factor
        if name != "power_w":
            stem, unit = name.split("_")
            for bound in (f"{stem}_low_{unit}", f"{stem}_high_{unit}"):
                columns[bound] *= factor
    for quantity, name in (("latency", "latency_s"), ("energy", "energy_j")):
        if quantity == "energy" and "power" not in ratios:
            continue
        stem, unit = name.split("_")
        low, high = reach.interval(quantity).around(columns[name][where], distance)
        columns[f"{stem}_low_{unit}"][where], columns[f"{stem}_high_{unit}"][where] = low, high
        columns[f"{stem}_source"][where] = LEARNED
    return replace(predicted, **columns)


def _median(values: Array) -> float:
    """As `np.median`, which takes longer than the trees."""
    ascending = np.sort(values).tolist()
    return 0.5 * float(ascending[(len(ascending) - 1) // 2] + ascending[len(ascending) // 2])


def adapted(
    predicted: Estimates, where: Array, rows: Array, positions: Array, measured: Sequence[MeasuredAnswer]
) -> Estimates:
    """The estimates at positions `where` (features: `rows`), corrected by what was measured at `positions` among them.

    Fewer than `FEWEST` measurements are left to the common scale, which `estimates.with_measured` finds.
    """
    if len(positions) < FEWEST:
        return predicted
    at = np.searchsorted(where, positions)
    if len(at) > MOST:
        keep = thinned(len(at), MOST)
        at, measured = at[keep], [measured[i] for i in keep]
    latency = np.array([row.latency_s for row in measured])
    energy = np.array([np.nan if row.energy_j is None else row.energy_j for row in measured])
    columns = {name: column.copy() for name, column in vars(predicted).items()}
    found = {"latency": adapt(rows[at], np.log(latency / predicted.latency_s[where[at]]))}
    known = np.isfinite(energy)
    if known.sum() >= FEWEST:
        found["energy"] = adapt(rows[at[known]], np.log(energy[known] / predicted.energy_j[where[at[known]]]))
    factor = {quantity: np.exp(correction.correction(rows)) for quantity, correction in found.items()}
    # With latency alone the power stays as it was.
    factor.setdefault("energy", factor["latency"])
    columns["power_w"][where] *= factor["energy"] / factor["latency"]
    for quantity, unit in (("latency", "s"), ("energy", "j")):
        value, low, high = f"{quantity}_{unit}", f"{quantity}_low_{unit}", f"{quantity}_high_{unit}"
        for name in (value, low, high):
            columns[name][where] *= factor[quantity]
        if quantity in found and found[quantity].interval.groups >= groups_needed():
            columns[low][where], columns[high][where] = found[quantity].interval.around(columns[value][where])
    return replace(predicted, **columns)
