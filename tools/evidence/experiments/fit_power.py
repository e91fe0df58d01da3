"""The coefficients of the power model, fitted to power that others recorded on real GPUs.

Least squares of the logarithm of predicted over recorded power (a robust loss, every recording with the same weight),
all coefficients positive, each drawn to its start by a spread that says how well the start is known. Prints each
coefficient, to be written into `kernrec/model/prior/power.toml`. Starts are published figures where there are any.
"""

import copy
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from front import DATA, Data, Table

from evidence.recordings.files import present
from evidence.recordings.power import Load
from evidence.recordings.power_of_products import all_loads
from kernrec.gpu import GPU, find_gpu
from kernrec.model.prior import power
from kernrec.model.prior.power import PowerModel

SPREAD = 0.05
"""Scatter of a good recording, as a fraction of its power."""
ROWS = 20
"""Weight of a recording, in rows of its scatter."""
BELOW_LIMIT = 0.96
"""Up to this share of its limit a load is taken for one that the limit does not slow down."""
GEMMS = 600
"""Library GEMMs that take part, evenly chosen."""
STEP = 1e-6
"""Of the differences that derivatives are taken from, in the logarithm of a figure."""
Coefficients = dict[str, Any]
"""The tables of `power.toml`."""


def _fitted() -> list[tuple[tuple[tuple[str, ...], ...], float, float]]:
    """The figures of `power.toml` to be fitted: paths of keys with the same value, start, and standard deviation of the
    logarithm of how far a figure may be from it."""
    starts = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    chips = [
        (tuple(("chip", sm, key) for sm in chip["sm"]), *figures)
        for chip in starts["chip"]
        for key, figures in chip.items()
        if key != "sm"
    ]
    others = [
        (tuple(tuple(path.split("/")) for path in each["paths"]), each["start"], each["spread"])
        for each in starts["figure"]
    ]
    return [(paths, float(start), float(spread)) for paths, start, spread in (*chips, *others)]


FITTED = _fitted()


def run(data: Data = DATA) -> None:
    """Print the fitted coefficients beside where they started, and how well they meet each recording."""
    present(data / "power")
    loads = usable(all_loads(data))
    coefficients, table = fit(loads), Table()
    for (path, *_), start, _ in FITTED:
        entry: Any = coefficients
        for key in path:
            entry = entry[key]
        table.row({"coefficient": ".".join(path), "fitted": f"{entry:.4g}", "start": f"{start:g}"})
    ratio, table = Predictor(loads)(coefficients) / np.array([load.power_w for load in loads]), Table()
    for name in dict.fromkeys(load.recording for load in loads):
        own = ratio[[load.recording == name for load in loads]]
        error = f"{np.median(np.abs(own - 1)):.1%}"
        table.row({"recording": name, "rows": len(own), "ratio": f"{np.median(own):.3f}", "error": error})


def shipped() -> Coefficients:
    """The coefficients of `power.toml`."""
    return tomllib.loads(Path(power.__file__).with_name("power.toml").read_text(encoding="utf-8"))


def with_values(base: Mapping[str, Any], values: Iterable[float]) -> Coefficients:
    """`power.toml` with other values of `FITTED`."""
    changed = copy.deepcopy(dict(base))
    for (paths, _, _), value in zip(FITTED, values, strict=True):
        for path in paths:
            entry: Any = changed
            for key in path[:-1]:
                entry = entry.setdefault(key, {})
            entry[path[-1]] = float(value)
    return changed


class Predictor:
    """Predicts the power of loads (W), without a limit, from the coefficients."""

    def __init__(self, loads: Sequence[Load]) -> None:
        members = defaultdict(list)
        for i, load in enumerate(loads):
            members[load.gpu, load.inputs].append(i)
        self._count = len(loads)
        self._batches = [_Batch.of(loads, find_gpu(name), data, rows) for (name, data), rows in members.items()]

    def __call__(self, coefficients: Mapping[str, Any]) -> np.ndarray:
        """(N,)."""
        return self.changed(np.empty(self._count), coefficients, None)

    def changed(
        self, watts: np.ndarray, coefficients: Mapping[str, Any], architectures: Collection[str] | None
    ) -> np.ndarray:
        """`watts` with those of the cards of these architectures predicted anew; None: of all cards."""
        watts = watts.copy()
        for batch in self._batches:
            if architectures is None or f"sm_{batch.gpu.sm}" in architectures:
                model = PowerModel.of_coefficients(batch.gpu, coefficients, batch.data)
                watts[batch.members] = model.power_at(batch.clock_hz, batch.rates)
        return watts


@dataclass(frozen=True)
class _Batch:
    """The loads of a card with one kind of inputs."""

    gpu: GPU
    data: str
    members: Sequence[int]
    clock_hz: np.ndarray
    rates: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, loads: Sequence[Load], gpu: GPU, data: str, members: Sequence[int]) -> "_Batch":
        events = sorted({event for i in members for event in loads[i].rates})
        rates = {event: np.array([loads[i].rates.get(event, 0.0) for i in members]) for event in events}
        return cls(gpu, data, members, np.array([loads[i].clock_hz for i in members]), rates)


def fit(loads: Sequence[Load]) -> Coefficients:
    """The coefficients that meet these loads best."""
    from scipy.optimize import least_squares

    base, predict = shipped(), Predictor(loads)
    recorded = np.array([load.power_w for load in loads])
    limited = np.array([at_limit(load) for load in loads])
    counts = Counter(load.recording for load in loads)
    # A recording of a few rows must not count as much as one of hundreds.
    weights = np.array([np.sqrt(load.weight * min(ROWS / counts[load.recording], 3.0)) for load in loads]) / SPREAD
    start = np.log([start for _, start, _ in FITTED])
    spread = np.array([spread for _, _, spread in FITTED])

    def errors(watts: np.ndarray) -> np.ndarray:
        error = np.log(watts / recorded)
        # At its limit a load would draw as much or more at the clock that is stated.
        error[limited] = np.minimum(error[limited], 0.0)
        return np.asarray(weights * error)

    def residuals(logarithms: np.ndarray) -> np.ndarray:
        watts = predict(with_values(base, np.exp(logarithms)))
        return np.concatenate([errors(watts), (logarithms - start) / spread])

    def jacobian(logarithms: np.ndarray) -> np.ndarray:
        """By differences; a figure of some architectures changes the loads on their cards alone."""
        watts = predict(with_values(base, np.exp(logarithms)))
        before, rows = errors(watts), []
        for (paths, _, _), moved in zip(FITTED, logarithms + STEP * np.eye(len(logarithms)), strict=True):
            of_chips = {path[1] for path in paths} if paths[0][0] == "chip" else None
            rows.append((errors(predict.changed(watts, with_values(base, np.exp(moved)), of_chips)) - before) / STEP)
        return np.concatenate([np.array(rows).T, np.diag(1.0 / spread)])

    solution = least_squares(residuals, start, jac=jacobian, loss="soft_l1")
    return with_values(base, np.exp(solution.x))


def usable(loads: Iterable[Load]) -> list[Load]:
    """The loads whose clock is known, and of the library's GEMMs an even choice."""
    clocked = [load for load in loads if load.clock_hz]
    gemms = [load for load in clocked if load.recording == "GEMM H200"]
    chosen = {id(load) for load in gemms[:: max(len(gemms) // GEMMS, 1)]}
    return [load for load in clocked if load.recording != "GEMM H200" or id(load) in chosen]


def at_limit(load: Load) -> bool:
    """Whether a limit may have slowed a load down from the clock that is stated."""
    return load.recording != "TF32 RTX 3090" and load.limit_w is not None and load.power_w > BELOW_LIMIT * load.limit_w
