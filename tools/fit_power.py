"""Fit the coefficients of the power model to power that others recorded on real GPUs.

Usage: python tools/fit_power.py [--data PATH]   (kernrec and SciPy installed; PATH: shared data)

Least squares of the logarithm of predicted over recorded power (a robust loss, every recording with the same weight),
all coefficients positive, each drawn to its start by a spread that says how well the start is known. Prints each
coefficient, to be written into `kernrec/model/prior/power.toml`. Starts are published figures where there are any.
"""

import argparse
import copy
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from power_recordings import Load, all_loads

from kernrec.gpu import find_gpu
from kernrec.model.prior import power
from kernrec.model.prior.power import PowerModel

DEFAULT_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SPREAD = 0.05
"""Scatter of a good recording, as a fraction of its power."""
ROWS = 20
"""Weight of a recording, in rows of its scatter."""
BELOW_LIMIT = 0.96
"""Up to this share of its limit a load is taken for one that the limit does not slow down."""
GEMMS = 600
"""Library GEMMs that take part, evenly chosen."""


@dataclass(frozen=True)
class Coefficient:
    """A figure of `power.toml` to be fitted."""

    path: tuple[str, ...]
    """Its keys; several figures that are the same have all of theirs in `same`."""
    start: float
    spread: float
    """How far it may be from `start`, as a standard deviation of its logarithm."""
    same: tuple[tuple[str, ...], ...] = ()


def _chip(sm: str, figures: Mapping[str, tuple[float, float]], also: Sequence[str] = ()) -> list[Coefficient]:
    return [
        Coefficient(("chip", sm, key), *known, tuple(("chip", other, key) for other in also))
        for key, known in figures.items()
    ]


COEFFICIENTS = [
    # Energies scale with the process: 12 nm, 7 nm, 8 nm and 5 nm class; knee and steepness from where vendors' curves
    # leave the lowest voltage (about 0.7 V; 0.88 V on Ada) and from 1.05 V at the highest clocks.
    *_chip("sm_75", {
        "fma32_pj": (170, 0.4), "clock_pj": (250, 0.4), "leakage_w": (0.3, 0.4),
        "knee_hz": (1.3e9, 0.06), "steepness": (0.4, 0.3),
    }),
    *_chip("sm_80", {
        "fma32_pj": (120, 0.4), "clock_pj": (150, 0.4), "leakage_w": (0.12, 0.4),
        "knee_hz": (1.05e9, 0.06), "steepness": (0.4, 0.3), "mma_f16_pj": (0.6, 0.6),
    }),
    *_chip("sm_86", {
        "fma32_pj": (150, 0.4), "clock_pj": (250, 0.4), "leakage_w": (0.4, 0.4),
        "knee_hz": (1.36e9, 0.06), "steepness": (0.4, 0.3), "mma_f16_pj": (1.2, 0.6),
    }),
    *_chip("sm_89", {
        "fma32_pj": (150, 0.4), "clock_pj": (200, 0.4), "leakage_w": (0.3, 0.15),
        "knee_hz": (2.4e9, 0.02), "steepness": (0.4, 0.3), "mma_f16_pj": (0.7, 0.6),
    }, ["sm_120"]),
    *_chip("sm_90", {
        "fma32_pj": (110, 0.4), "clock_pj": (120, 0.4), "leakage_w": (0.15, 0.4),
        "knee_hz": (1.65e9, 0.01), "steepness": (0.4, 0.1), "mma_f16_pj": (0.45, 0.6),
    }, ["sm_100"]),
    Coefficient(("board", "fraction_of_tdp"), 0.05, 0.2),
    Coefficient(("data", "zeros"), 0.6, 0.3),
    # Micron, Ultra-Bandwidth Solutions: GDDR6 7.5 and GDDR6X 7.25 pJ/bit for the device alone; O'Connor et al.
    # (MICRO 2017): HBM2 3.9 and GDDR5 14 pJ/bit. Igor's Lab: about 2.5 W a device of GDDR6X.
    Coefficient(("memory", "GDDR6", "pj_per_bit"), 11.0, 0.2),
    Coefficient(("memory", "GDDR6X", "pj_per_bit"), 10.5, 0.1),
    Coefficient(("memory", "HBM2", "pj_per_bit"), 6.0, 0.2, (("memory", "HBM2e", "pj_per_bit"),)),
    Coefficient(("memory", "HBM3e", "pj_per_bit"), 5.5, 0.2, (("memory", "HBM3", "pj_per_bit"),)),
    Coefficient(("memory", "GDDR6", "standby_w"), 1.2, 0.25),
    Coefficient(("memory", "GDDR6X", "standby_w"), 2.5, 0.3),
    Coefficient(("memory", "HBM2", "standby_w"), 4.0, 0.5, (("memory", "HBM2e", "standby_w"),)),
    Coefficient(("memory", "HBM3e", "standby_w"), 7.0, 0.5, (("memory", "HBM3", "standby_w"),)),
    Coefficient(("event", "issue.imad", "ratio"), 1.3, 0.4),
    Coefficient(("event", "issue.f64", "ratio"), 5.0, 0.4),
    Coefficient(("event", "issue.other", "ratio"), 0.4, 0.3),
    Coefficient(("event", "shared.wavefronts", "ratio"), 1.2, 0.4),
    Coefficient(("event", "l2.sectors", "ratio"), 1.7, 0.4),
]  # fmt: skip


def shipped() -> dict[str, Any]:
    """The coefficients of `power.toml`."""
    return tomllib.loads(Path(power.__file__).with_name("power.toml").read_text(encoding="utf-8"))


def with_values(base: Mapping[str, Any], values: Iterable[float]) -> dict[str, Any]:
    """`power.toml` with other values of `COEFFICIENTS`."""
    changed = copy.deepcopy(dict(base))
    for coefficient, value in zip(COEFFICIENTS, values, strict=True):
        for path in (coefficient.path, *coefficient.same):
            entry = changed
            for key in path[:-1]:
                entry = entry[key]
            entry[path[-1]] = float(value)
    return changed


def predictor(loads: Sequence[Load]) -> Callable[[Mapping[str, Any]], np.ndarray]:
    """Predicts the power of these loads (W), without a limit, from the coefficients."""
    groups = defaultdict(list)
    for i, load in enumerate(loads):
        groups[load.gpu, "zeros" if load.recording.startswith("FMA") else "random"].append(i)
    batches = []
    for (name, data), members in groups.items():
        events = sorted({event for i in members for event in loads[i].rates})
        rates = {event: np.array([loads[i].rates.get(event, 0.0) for i in members]) for event in events}
        batches.append((find_gpu(name), data, members, np.array([loads[i].clock_hz for i in members]), rates))

    def predict(coefficients: Mapping[str, Any]) -> np.ndarray:
        watts = np.empty(len(loads))
        for gpu, data, members, clock_hz, rates in batches:
            watts[members] = PowerModel.of_coefficients(gpu, coefficients, data).power_at(clock_hz, rates)
        return watts

    return predict


def fit(loads: Sequence[Load]) -> dict[str, Any]:
    """The coefficients that meet these loads best."""
    from scipy.optimize import least_squares

    base, predict = shipped(), predictor(loads)
    recorded = np.array([load.power_w for load in loads])
    limited = np.array([at_limit(load) for load in loads])
    counts: dict[str, int] = defaultdict(int)
    for load in loads:
        counts[load.recording] += 1
    # A recording of a few rows must not count as much as one of hundreds.
    weights = np.array([np.sqrt(min(ROWS / counts[load.recording], 3.0)) for load in loads]) / SPREAD
    start = np.log([coefficient.start for coefficient in COEFFICIENTS])
    spread = np.array([coefficient.spread for coefficient in COEFFICIENTS])

    def residuals(logarithms: np.ndarray) -> np.ndarray:
        predicted = predict(with_values(base, np.exp(logarithms)))
        error = np.log(predicted / recorded)
        # At its limit a load would draw as much or more at the clock that is stated.
        error[limited] = np.minimum(error[limited], 0.0)
        return np.concatenate([weights * error, (logarithms - start) / spread])

    solution = least_squares(residuals, start, loss="soft_l1")
    return with_values(base, np.exp(solution.x))


def usable(loads: Iterable[Load]) -> list[Load]:
    """The loads whose clock is known, and of the library's GEMMs an even choice."""
    known = [load for load in loads if load.clock_hz]
    gemms = [load for load in known if load.recording == "GEMM H200"]
    chosen = {id(load) for load in gemms[:: max(len(gemms) // GEMMS, 1)]}
    return [load for load in known if load.recording != "GEMM H200" or id(load) in chosen]


def at_limit(load: Load) -> bool:
    """Whether a limit may have slowed a load down from the clock that is stated."""
    return load.recording != "TF32 RTX 3090" and load.limit_w is not None and load.power_w > BELOW_LIMIT * load.limit_w


def main() -> int:
    """Print the fitted coefficients beside where they started."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="the shared data folder")
    data: Path = parser.parse_args().data
    if not (data / "power").is_dir():
        print(f"no recordings of power in {data}; name the shared data folder with --data", file=sys.stderr)
        return 2
    loads = usable(all_loads(data))
    coefficients = fit(loads)
    for coefficient in COEFFICIENTS:
        entry: Any = coefficients
        for key in coefficient.path:
            entry = entry[key]
        print(f"{'.'.join(coefficient.path):32} {entry:10.4g}   start {coefficient.start:g}")
    ratio = predictor(loads)(coefficients) / np.array([load.power_w for load in loads])
    for name in dict.fromkeys(load.recording for load in loads):
        own = np.array([r for r, load in zip(ratio, loads, strict=True) if load.recording == name])
        print(f"{name:28} {len(own):5} rows  ratio {np.median(own):.3f}  median error {np.median(np.abs(own - 1)):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
