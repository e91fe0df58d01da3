"""How far a recorded time may be off: by what factor other recordings of the same problems differ from it.

    repeats    the same version ran the same kernels once more on a GPU of this model
    versions   a later version ran the problem. What neighbors along `m` have in common is drift between versions, not
               error: factors are the differences between neighbors, over the root of two, because both have an error
    neighbors  for backends that nobody recorded twice: problems whose sizes differ by at most 8 % and that ran the same
               kernels, in proportion to their work, over the root of two

The interval is that of nine in ten of these factors, and at least 3 % to either side. It comes from recordings of the
same GPU, backend and data type; if there are too few of these, from other data types of the backend, and then from
all backends of the same recorder. It holds for the version that was recorded: drift between versions is not in it.
Power has the interval of neighbors in the first dimension that take the same time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray
Row = Mapping[str, Any]

LEAST = 0.03
"""Least relative half-width: repeats of one launch spread by that (p90 of the A100's and H100's repeats)."""
ENOUGH = 200
"""Least number of factors that an interval is taken from."""
_NEAR = 0.08
"""Largest distance of neighbors, in logarithms of their sizes."""
_SAME_TIME = 0.03
"""Largest difference in time of neighbors whose power is compared, as a logarithm."""
_LEAST_POWER = 0.05
"""Least relative half-width of power: the accuracy that NVML states."""


@dataclass
class Spread:
    """Factors between recordings of the same problems, by GPU, backend and data type."""

    again: dict[tuple[str, str, str, str], list[float]] = field(default_factory=dict)
    """By (source, backend, data type, GPU): logarithms of another recording's time over the shipped one."""
    later: dict[tuple[object, ...], list[tuple[int, float]]] = field(default_factory=dict)
    """By the key of `again`, variant, `n` and `k`: `m`, and the logarithm of a later version's time over the row's."""

    def add(self, row: Row, other_s: float) -> None:
        """Add another recording of the problem of a row by the same version."""
        self.again.setdefault(_key(row), []).append(float(np.log(other_s / row["latency_s"])))

    def add_later(self, row: Row, other_s: float) -> None:
        """Add a recording of the product of a row by a later version."""
        line = self.later.setdefault((*_key(row), row["variant"], row["n"], row["k"]), [])
        line.append((row["m"], float(np.log(other_s / row["latency_s"]))))

    def remove_drift(self) -> None:
        """Turn recordings by later versions into factors: what neighbors along `m` do not have in common."""
        for key, line in self.later.items():
            ratios = np.array([ratio for _, ratio in sorted(line)])
            group: Any = key[:4]
            self.again.setdefault(group, []).extend((np.diff(ratios) / np.sqrt(2)).tolist())

    def factors(self, source: str, stack: str, dtype: str, gpu: str, but: str = "") -> Array:
        """Return the factors that hold for a GPU, backend and data type, from the narrowest group with enough of them.

        Args:
            source, stack, dtype, gpu: of the rows.
            but: a GPU whose recordings are held out.
        """
        wanted = source, stack, dtype, gpu
        for same in (4, 3, 2, 1):
            groups = [logs for key, logs in self.again.items() if key[:same] == wanted[:same] and key[3] != but]
            if sum(map(len, groups)) >= ENOUGH:
                return np.concatenate([np.asarray(logs) for logs in groups])
        return np.zeros(0)


def _key(row: Row) -> tuple[str, str, str, str]:
    return row["source"], row["stack"], row["dtype"], row["gpu"]


def interval(factors: Array) -> tuple[float, float]:
    """Return the factors to the low and the high end of a 90 % interval, from logarithms of factors (N,)."""
    low, high = np.quantile(factors, (0.05, 0.95)) if len(factors) else (0.0, 0.0)
    return float(np.exp(min(low, -np.log1p(LEAST)))), float(np.exp(max(high, np.log1p(LEAST))))


def neighbors(rows: Sequence[Row], dims: Sequence[str], work_s: Callable[[Row], float]) -> Array:
    """Return logarithms of the times of neighboring problems over each other, in proportion to their work.

    Args:
        rows: of one GPU and backend.
        dims: names of the dimensions.
        work_s: least time of a row.
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
    """Return the relative half-width of 90 % of the recorded powers of one GPU and backend.

    Neighbors have the same sizes but in the first dimension, and take the same time.
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
    """Return the shares of held-out factors inside the intervals: of half of the problems, and of whole GPUs."""
    halves, cards = [], []
    for key, logs in spread.again.items():
        if key[0] == source and len(logs) >= ENOUGH:
            every = np.asarray(logs)
            low, high = np.log(interval(every[::2]))
            halves.append((every[1::2] >= low) & (every[1::2] <= high))
            if len(others := spread.factors(*key, but=key[3])):
                low, high = np.log(interval(others))
                cards.append((every >= low) & (every <= high))
    parts = {"problems held out": halves, "GPUs held out": cards}
    return {name: round(float(np.concatenate(part).mean()), 3) for name, part in parts.items() if part}
