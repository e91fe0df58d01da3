"""Learned estimates: the prior corrected by a model of what devices did, where one was trained.

    models    beside the database: `<op>@<gpu>` where there is one, else `<op>`
    scored    the candidates that the prior finds fastest and most frugal; trees for more would take too long
    the rest  put on the scale of those scored, so that a prior that is too low does not place them before
    adapted   where some configs were measured on this very GPU and problem, the model's error there corrects the others
              at once, in scale and in shape (`model.adapt`), with nothing trained again

A model that cannot be used is said in one line and left out: the answer is then what it would be without.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.model.adapt import adapt
from kernrec.model.intervals import Interval, groups_needed
from kernrec.model.learner import Model
from kernrec.model.model_file import load
from kernrec.model.prior import INTERVAL
from kernrec.recommender.estimates import LEARNED, Estimates
from kernrec.store import Measured, Stack

Array = np.ndarray

SCORED = 64
"""Candidates that the trees are asked about."""

FEWEST, MOST = 5, 64
"""Measurements of a problem from which on its other configs are adapted, and how many are looked at."""


class Models:
    """The models of a folder, each read once."""

    def __init__(self, folder: Path, stack: Stack) -> None:
        self._folder = folder
        self._stack = stack
        self._read: dict[str, Model | None] = {}
        self._unsaid: list[str] = []

    def find(self, op: str, gpu: GPU) -> Model | None:
        """The model of an op on a GPU, or of the op on any."""
        for name in (f"{op}@{gpu.name}", op):
            if name not in self._read:
                self._read[name] = self._load(name)
            if model := self._read[name]:
                return model
        return None

    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the models read since the last call."""
        said, self._unsaid = tuple(self._unsaid), []
        return said

    def _load(self, name: str) -> Model | None:
        path = self._folder / f"{name}.json"
        if not path.exists():
            return None
        try:
            model, card = load(path)
        except KernrecError as error:
            self._unsaid.append(f"{error}; not used")
            return None
        trained, now = card["training"].get("measurements"), self._stack.measurements()
        if trained != now:
            self._unsaid.append(
                f"model {name} was trained on {trained} measurements, the databases in use hold {now}"
                " (`kernrec train` renews it)"
            )
        return model


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
    predicted: Estimates, model: Model, gpu: GPU, where: Array, ratios: dict[str, Array], distance: Array
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
        factor = np.full(len(predicted.latency_s), math.exp(float(np.median(log))))
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
        low, high = interval(model, quantity, gpu).around(columns[name][where], distance)
        columns[f"{stem}_low_{unit}"][where], columns[f"{stem}_high_{unit}"][where] = low, high
        columns[f"{stem}_source"][where] = LEARNED
    return replace(predicted, **columns)


def adapted(
    predicted: Estimates, where: Array, rows: Array, positions: Array, measured: Sequence[Measured]
) -> Estimates:
    """The estimates at positions `where` (features: `rows`), corrected by what was measured at `positions` among them.

    Fewer than `FEWEST` measurements are left to the common scale, which `estimates.with_measured` finds.
    """
    if len(positions) < FEWEST:
        return predicted
    at = np.searchsorted(where, positions)
    if len(at) > MOST:
        keep = np.linspace(0, len(at) - 1, MOST).astype(np.int64)
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


def interval(model: Model, quantity: str, gpu: GPU) -> Interval:
    """The calibrated interval of a GPU; of one that the model has not seen, or where nothing could be calibrated, at
    least the prior's."""
    found = model.intervals.get(quantity, {})
    known = found.get(gpu.name) or found.get("*")
    least = math.log(INTERVAL)
    if known is None:
        return Interval(least, 0, "prior")
    return known if gpu.name in model.gpus else replace(known, width=max(known.width, least))
