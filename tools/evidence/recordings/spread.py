"""Estimate the error of recorded times from other recordings of the same problems.

    repeats    the same version ran the same kernels once more on a GPU of this model
    versions   a later version ran the problem. A difference that neighbors along `m` share is drift between versions,
               not error. So factors are differences between neighbors, divided by the root of two for their two errors
    neighbors  for backends that nobody recorded twice: times of problems whose sizes differ by at most 8 % and that ran
               the same kernels, relative to their work, divided by the root of two

The interval contains 90 % of these factors, and at least 3 % on each side. It comes from recordings of the same GPU,
backend and data type. If there are too few, it comes from other data types of the backend, or else from all backends of
the same recorder. It applies to the recorded version and excludes drift between versions. The interval of power comes
from neighbors in the first dimension with equal times.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray
Row = Mapping[str, Any]

LEAST = 0.03
"""Minimum relative half-width: the 90th percentile of differences between repeats on the A100 and H100."""
ENOUGH = 200
"""Minimum number of factors for an interval."""
_NEAR = 0.08
"""Maximum distance of neighbors, in logarithms of their sizes."""
_SAME_TIME = 0.03
"""Maximum logarithmic difference in time between neighbors whose power is compared."""
_LEAST_POWER = 0.05
"""Minimum relative half-width of power: NVML's documented accuracy."""


@dataclass
class Spread:
    """Factors between recordings of the same problems, by GPU, backend and data type."""

    again: dict[tuple[str, str, str, str], list[float]] = field(default_factory=dict)
    """Logarithms of a repeat's time over the shipped time, by (source, backend, data type, GPU)."""
    later: dict[tuple[object, ...], list[tuple[int, float]]] = field(default_factory=dict)
    """(`m`, logarithm of a later version's time over the row's time) pairs, by key of `again`, variant, `n` and `k`."""

    def add(self, row: Row, other_s: float) -> None:
        """Add another recording of a row's problem by the same version."""
        self.again.setdefault(_key(row), []).append(float(np.log(other_s / row["latency_s"])))

    def add_later(self, row: Row, other_s: float) -> None:
        """Add a later version's recording of a row's matmul."""
        line = self.later.setdefault((*_key(row), row["variant"], row["n"], row["k"]), [])
        line.append((row["m"], float(np.log(other_s / row["latency_s"]))))

    def remove_drift(self) -> None:
        """Convert recordings by later versions to factors: the differences between neighbors along `m`."""
        for key, line in self.later.items():
            ratios = np.array([ratio for _, ratio in sorted(line)])
            group: Any = key[:4]
            self.again.setdefault(group, []).extend((np.diff(ratios) / np.sqrt(2)).tolist())

    def factors(self, source: str, backend: str, dtype: str, gpu: str, but: str = "") -> Array:
        """Return the factors for a GPU, backend and data type, from the narrowest group with enough factors.

        Args:
            source, stack, dtype, gpu: keys of the rows.
            but: GPU whose recordings to hold out.
        """
        wanted = source, backend, dtype, gpu
        for same in (4, 3, 2, 1):
            groups = [logs for key, logs in self.again.items() if key[:same] == wanted[:same] and key[3] != but]
            if sum(map(len, groups)) >= ENOUGH:
                return np.concatenate([np.asarray(logs) for logs in groups])
        return np.zeros(0)


def _key(row: Row) -> tuple[str, str, str, str]:
    return row["source"], row["stack"], row["dtype"], row["gpu"]


def interval(factors: Array) -> tuple[float, float]:
    """Return the factors at the ends of a 90 % interval, computed from logarithms of factors (N,)."""
    low, high = np.quantile(factors, (0.05, 0.95)) if len(factors) else (0.0, 0.0)
    return float(np.exp(min(low, -np.log1p(LEAST)))), float(np.exp(max(high, np.log1p(LEAST))))


def neighbors(rows: Sequence[Row], dims: Sequence[str], work_s: Callable[[Row], float]) -> Array:
    """Return logarithms of the ratios between times of neighboring problems, relative to their work.

    Args:
        rows: rows of one GPU and backend.
        dims: names of the dimensions.
        work_s: function that returns the minimum time of a row.
    """
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
    """Return the relative half-width that contains 90 % of the differences in power of one GPU and backend.

    The differences are between neighbors that differ only in the first dimension, and take the same time.
    """
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
    """Return the fractions of factors inside the intervals, for held-out halves of the problems and held-out GPUs."""
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
