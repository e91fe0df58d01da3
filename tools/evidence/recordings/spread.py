"""Estimate the error of recorded times from factors between two times of other recordings of the same problems:

    repeats    the same version ran the same kernels again on a GPU of the same model
    versions   a later version ran the problem; its common factor along `m` is removed by differences of neighbors
    neighbors  times per unit of work of two problems with the same kernels and sizes within 8 %

Differences of two errors are divided by the square root of two. The interval of a time contains 90 % of the factors of
the GPU, backend and data type, or of a wider group if there are too few, and at least 3 % on each side. It does not
include differences between versions. The interval of a power comes from neighbors that take equal times.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray
Row = Mapping[str, Any]

LEAST = 0.03
"""Minimum relative half-width of an interval: the 90th percentile of differences between repeats (A100 and H100)."""
ENOUGH = 200
"""Minimum number of factors from which an interval is computed."""
_NEAR = 0.08
"""Maximum distance between two neighbors, in the logarithms of their sizes."""
_SAME_TIME = 0.03
"""Maximum logarithmic difference in time between two neighbors whose powers are compared."""
_LEAST_POWER = 0.05
"""Minimum relative half-width of the interval of a power: the accuracy that NVML documents."""


@dataclass
class Spread:
    """Factors between times of the same problem, for each GPU, backend and data type."""

    again: dict[tuple[str, str, str, str], list[float]] = field(default_factory=dict)
    """Logarithms of other times over the shipped time, keyed by (source, backend, data type, GPU)."""
    later: dict[tuple[object, ...], list[tuple[int, float]]] = field(default_factory=dict)
    """Pairs (`m`, logarithm of a later version's time over the row's time). A key consists of the key of `again`, the
    variant, `n` and `k`."""

    def add(self, row: Row, other_s: float) -> None:
        """Add another time that the same version took for a row's problem."""
        self.again.setdefault(_key(row), []).append(float(np.log(other_s / row["latency_s"])))

    def add_later(self, row: Row, other_s: float) -> None:
        """Add the time that a later version took for the matmul of a row."""
        line = self.later.setdefault((*_key(row), row["variant"], row["n"], row["k"]), [])
        line.append((row["m"], float(np.log(other_s / row["latency_s"]))))

    def remove_drift(self) -> None:
        """Convert the times of later versions to factors without differences between versions. The logarithm of a
        factor is the difference between two neighbors along `m`."""
        for key, line in self.later.items():
            ratios = np.array([ratio for _, ratio in sorted(line)])
            group: Any = key[:4]
            self.again.setdefault(group, []).extend((np.diff(ratios) / np.sqrt(2)).tolist())

    def factors(self, source: str, backend: str, dtype: str, gpu: str, but: str = "") -> Array:
        """Return logarithms of factors, from the narrowest group of recordings with enough factors for a GPU, backend
        and data type. If there is none, return an empty array. Recordings of the GPU `but` are held out."""
        wanted = source, backend, dtype, gpu
        for same in (4, 3, 2, 1):
            groups = [logs for key, logs in self.again.items() if key[:same] == wanted[:same] and key[3] != but]
            if sum(map(len, groups)) >= ENOUGH:
                return np.concatenate([np.asarray(logs) for logs in groups])
        return np.zeros(0)


def _key(row: Row) -> tuple[str, str, str, str]:
    return row["source"], row["stack"], row["dtype"], row["gpu"]


def interval(factors: Array) -> tuple[float, float]:
    """Return the factors at the two ends of a 90 % interval, from logarithms of factors, (N,)."""
    low, high = np.quantile(factors, (0.05, 0.95)) if len(factors) else (0.0, 0.0)
    return float(np.exp(min(low, -np.log1p(LEAST)))), float(np.exp(max(high, np.log1p(LEAST))))


def neighbors(rows: Sequence[Row], dims: Sequence[str], work_s: Callable[[Row], float]) -> Array:
    """Return log ratios of time per unit of work between neighboring problems, for one GPU and backend."""
    from scipy.spatial import cKDTree

    alike: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        alike.setdefault((row["layout"], row["kernel"]), []).append(row)
    factors = []
    for group in alike.values():
        sizes = np.log([[max(float(row[name]), 0.5) for name in dims] for row in group])
        distance, nearest = cKDTree(sizes).query(sizes, k=min(2, len(group)))
        if len(group) > 1:
            per_work = np.log([row["latency_s"] / work_s(row) for row in group])
            near = distance[:, 1] < _NEAR
            factors.append(per_work[nearest[near, 1]] - per_work[near])
    return np.concatenate(factors) / np.sqrt(2) if factors else np.zeros(0)


def power_width(rows: Iterable[Row], dims: Sequence[str]) -> float:
    """Return the relative half-width that contains 90 % of the differences in power between neighbors in the first
    dimension that take the same time, for rows of one GPU and backend."""
    lines: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row["power_w"]:
            lines.setdefault((row["dtype"], *(row[name] for name in dims[1:])), []).append(row)
    differences = []
    for line in lines.values():
        line.sort(key=lambda row: float(row[dims[0]]))
        seconds, watts = (np.log([row[name] for row in line]) for name in ("latency_s", "power_w"))
        near = np.abs(np.diff(seconds)) < _SAME_TIME
        differences.append(np.abs(np.diff(watts))[near])
    every = np.concatenate(differences) if differences else np.zeros(0)
    return max(float(np.quantile(every, 0.9)) if len(every) >= ENOUGH else 0.0, _LEAST_POWER)


def coverage(spread: Spread, source: str) -> dict[str, float]:
    """Return the fraction of factors inside intervals that come from other problems, and that come from other GPUs."""
    halves, gpus = [], []
    for key, logs in spread.again.items():
        if key[0] == source and len(logs) >= ENOUGH:
            every = np.asarray(logs)
            low, high = np.log(interval(every[::2]))
            halves.append((every[1::2] >= low) & (every[1::2] <= high))
            if len(others := spread.factors(*key, but=key[3])):
                low, high = np.log(interval(others))
                gpus.append((every >= low) & (every <= high))
    parts = {"problems held out": halves, "GPUs held out": gpus}
    return {name: round(float(np.concatenate(part).mean()), 3) for name, part in parts.items() if part}
