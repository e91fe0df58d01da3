"""Fit the coefficients of the power model to powers that others recorded on real GPUs.

The fit minimizes a robust loss of log(predicted / recorded power), in which all large recordings have the same weight.
All coefficients are positive. Each coefficient is pulled towards a start value, which is a published figure if there is
one. The strength of the pull reflects how well the start value is known. The tool prints each coefficient for
`kernrec/model/analytical/power.toml`.
"""

import copy
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
from front import DATA, Data, Table

from evidence.recordings.files import present
from evidence.recordings.power import Load
from evidence.recordings.power_of_products import all_loads
from kernrec.gpu import find_gpu
from kernrec.model.analytical import power
from kernrec.model.analytical.power import PowerModel

SPREAD = 0.05
"""Standard deviation of the error of a good recording, as a fraction of its power."""
ROWS = 20
"""Weight of a recording in the fit, as a number of rows whose standard deviation is `SPREAD`."""
BELOW_LIMIT = 0.96
"""Fraction of the power limit below which a load is assumed to run at full speed."""
GEMMS = 600
"""Approximate number of library GEMMs in the fit, chosen at even intervals."""
STEP = 1e-6
"""Step for numerical derivatives, in the logarithm of a coefficient."""
Coefficients = dict[str, Any]
"""Tables of `power.toml`: the coefficients of the power model."""


def _fitted() -> list[tuple[tuple[tuple[str, ...], ...], float, float]]:
    """Return (paths in `power.toml`, start value, standard deviation of log(coefficient / start value)) of each
    coefficient to fit."""
    starts = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    fitted: list[Any] = []
    for chip in starts["chip"]:
        architectures = chip.pop("sm")
        fitted += [(tuple(("chip", sm, key) for sm in architectures), *map(float, chip[key])) for key in chip]
    for each in starts["figure"]:
        fitted.append((tuple(tuple(path.split("/")) for path in each["paths"]), float(each["start"]), each["spread"]))
    return fitted


FITTED = _fitted()


def run(data: Data = DATA) -> None:
    """Print the fitted coefficients with their start values, and the errors for each recording."""
    present(data / "power")
    loads = usable(all_loads(data))
    coefficients, table = fit(loads), Table()
    for (path, *_), start, _ in FITTED:
        fitted: Any = reduce(getitem, path, coefficients)
        table.row({"coefficient": ".".join(path), "fitted": f"{fitted:.4g}", "start": f"{start:g}"})
    ratio, table = Predictor(loads)(coefficients) / np.array([load.power_w for load in loads]), Table()
    for name in dict.fromkeys(load.recording for load in loads):
        own = ratio[[load.recording == name for load in loads]]
        error = f"{np.median(np.abs(own - 1)):.1%}"
        table.row({"recording": name, "rows": len(own), "ratio": f"{np.median(own):.3f}", "error": error})


def shipped() -> Coefficients:
    return tomllib.loads(Path(power.__file__).with_name("power.toml").read_text(encoding="utf-8"))


def with_values(base: Mapping[str, Any], logarithms: np.ndarray) -> Coefficients:
    """Return a copy of `base` in which the coefficients in `FITTED` have new values, given by their logarithms."""
    changed = copy.deepcopy(dict(base))
    for (paths, _, _), value in zip(FITTED, np.exp(logarithms).tolist(), strict=True):
        for *path, name in paths:
            entry: Any = changed
            for key in path:
                entry = entry.setdefault(key, {})
            entry[name] = value
    return changed


class Predictor:
    """Function that predicts the power of N loads in watts from coefficients, without a power limit."""

    def __init__(self, loads: Sequence[Load]) -> None:
        members = defaultdict(list)
        for i, load in enumerate(loads):
            members[load.gpu, load.inputs].append(i)
        self._count, self._batches = len(loads), []
        for (gpu, inputs), rows in members.items():
            events = sorted({event for i in rows for event in loads[i].rates})
            rates = {event: np.array([loads[i].rates.get(event, 0.0) for i in rows]) for event in events}
            self._batches.append((find_gpu(gpu), inputs, rows, np.array([loads[i].clock_hz for i in rows]), rates))

    def __call__(
        self, coefficients: Mapping[str, Any], watts: np.ndarray | None = None,
        architectures: Collection[str] | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Return the predicted power of each load in watts, (N,). With `architectures` (such as `sm_80`), predict only
        loads on these architectures, and copy the powers of other loads from `watts`."""
        result = np.empty(self._count) if watts is None else watts.copy()
        for gpu, inputs, rows, clock_hz, rates in self._batches:
            if architectures is None or f"sm_{gpu.sm}" in architectures:
                result[rows] = PowerModel.of_coefficients(gpu, coefficients, inputs).power_at(clock_hz, rates)
        return result


def fit(loads: Sequence[Load]) -> Coefficients:
    """Fit the coefficients of the power model to recorded loads."""
    from scipy.optimize import least_squares

    base, predict = shipped(), Predictor(loads)
    recorded = np.array([load.power_w for load in loads])
    limited = np.array([at_limit(load) for load in loads])
    counts = Counter(load.recording for load in loads)
    # Weight by recording, so that a recording with hundreds of rows does not outweigh a small one.
    weights = np.array([np.sqrt(load.weight * min(ROWS / counts[load.recording], 3.0)) for load in loads]) / SPREAD
    start = np.log([start for _, start, _ in FITTED])
    spread = np.array([spread for _, _, spread in FITTED])

    def errors(watts: np.ndarray) -> np.ndarray:
        error = np.log(watts / recorded)
        # At the power limit, the recorded power is only a lower bound. So a higher prediction is not an error.
        error[limited] = np.minimum(error[limited], 0.0)
        return np.asarray(weights * error)

    def residuals(logarithms: np.ndarray) -> np.ndarray:
        watts = predict(with_values(base, logarithms))
        return np.concatenate([errors(watts), (logarithms - start) / spread])

    def jacobian(logarithms: np.ndarray) -> np.ndarray:
        watts, rows = predict(with_values(base, logarithms)), []
        for (paths, _, _), moved in zip(FITTED, logarithms + STEP * np.eye(len(logarithms)), strict=True):
            of_chips = {path[1] for path in paths} if paths[0][0] == "chip" else None
            rows.append((errors(predict(with_values(base, moved), watts, of_chips)) - errors(watts)) / STEP)
        return np.concatenate([np.array(rows).T, np.diag(1.0 / spread)])

    return with_values(base, least_squares(residuals, start, jac=jacobian, loss="soft_l1").x)


def usable(loads: Iterable[Load]) -> list[Load]:
    """Return the loads with a known clock, but only about `GEMMS` of the H200's library GEMMs, at even intervals."""
    clocked = [load for load in loads if load.clock_hz]
    gemms = [load for load in clocked if load.recording == "GEMM H200"]
    chosen = {id(load) for load in gemms[:: max(len(gemms) // GEMMS, 1)]}
    return [load for load in clocked if load.recording != "GEMM H200" or id(load) in chosen]


def at_limit(load: Load) -> bool:
    """Return whether the power limit may have lowered a load's recorded clock."""
    return load.recording != "TF32 RTX 3090" and load.limit_w is not None and load.power_w > BELOW_LIMIT * load.limit_w
