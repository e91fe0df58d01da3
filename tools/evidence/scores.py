"""How well predicted times order and state measured ones, beyond `kernrec.training.scores`."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from kernrec.training import scores

Array = np.ndarray
THREADS = 256
"""The block size that people take who do not tune."""
RESIDENTS = (1, 2, 3, 5, 8)
"""Where classes of resident blocks begin."""
SLOW = 6.0
"""Configs that take longer than so many times the fastest say little about choices."""


def geometric_mean(ratio: Array) -> float:
    """Of positive values."""
    return float(np.exp(np.log(ratio).mean()))


def agreement(measured: Array, predicted: Array) -> dict[str, object]:
    """Cells of a table: rank correlation, median error, and geometric mean of predicted over measured, each (N,)."""
    return {
        "rank": scores.rank_correlation(predicted, measured),
        "error": f"{scores.median_error(measured, predicted):.1%}",
        "ratio": geometric_mean(predicted / measured),
    }


def beyond(ratio: Array, factor: float = 1.5) -> dict[str, object]:
    """Cells of a table: how many ratios of predicted over recorded, their mean, and the share outside of a factor."""
    outside = np.mean(np.abs(np.log(ratio)) > np.log(factor))
    return {"count": len(ratio), "mean": geometric_mean(ratio), f"outside x{factor:g}": f"{outside:.1%}"}


def occupancy_order(occupancy: Array, threads: Array) -> Array:
    """Badness of configs to who takes the most resident warps, and of equals the larger block."""
    return np.asarray(-(np.round(occupancy, 6) * 4096.0 + threads))


def block_order(threads: Array) -> Array:
    """Badness of configs to who takes the block nearest to 256 threads."""
    return np.asarray(np.round(np.abs(np.log(threads / THREADS)), 6))


def expected(measured: Array, badness: Array) -> float:
    """The mean efficiency of the configs that a heuristic holds equally good."""
    chosen = badness == badness.min()
    return float((measured.min() / measured[chosen]).mean())


def by_residents(measured: Array, predicted: Array, resident: Array) -> dict[str, object]:
    """Cells of a table: the median of predicted over measured by blocks that an SM holds, and of how many configs.

    Whether times are over- or underestimated by it is what nothing else shows as well.
    """
    fast = measured < SLOW * measured.min()
    cells: dict[str, object] = {}
    for low, high in pairwise((*RESIDENTS, np.inf)):
        title = f"{low} to {high - 1}" if high - low > 1 else str(low)
        ratios = (predicted / measured)[fast & (resident >= low) & (resident < high)]
        cells[title if np.isfinite(high) else f"{low} and more"] = (
            f"{np.median(ratios):.2f} ({len(ratios)})" if len(ratios) else "-"
        )
    return cells


def agreement_of_recordings(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, object] | None:
    """Cells of a table: how well one recording orders another, times by config; None with fewer than five in both.

    Of cards of one architecture: predictions of one code cannot order both better than they order each other.
    """
    common = [config for config in first if config in second]
    if len(common) < 5:
        return None
    a, b = (np.array([times[config] for config in common]) for times in (first, second))
    error = scores.median_error(a, b * float(np.median(a / b)))
    return {"configs": len(common), "rank": scores.rank_correlation(a, b), "error": f"{error:.1%}"}


def within(efficiencies: list[float]) -> int:
    """How many efficiencies are within 5 % of the best."""
    return sum(value >= 1.0 / (1.0 + scores.NEAR) for value in efficiencies)
