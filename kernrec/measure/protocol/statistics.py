"""Compute statistics of run times: median, spread, interval of the median, and convergence.

All statistics use medians and quantiles, because run times have a long tail that distorts means and standard
deviations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.9
"""Confidence of all stored and predicted intervals."""
OUTLIER_MADS = 5.0
"""Distance from the median, in median absolute deviations, beyond which a sample counts as an outlier; it is kept."""


@dataclass(frozen=True)
class LatencySummary:
    """Statistics of samples, in the unit of the samples."""

    n: int
    median: float
    mad: float
    """Median absolute deviation."""
    q10: float
    q90: float
    low: float | None
    """Lower end of the median's interval; None for too few samples."""
    high: float | None
    outliers: int

    @property
    def half_width(self) -> float:
        """Return the relative half-width of the median's interval; infinite without an interval."""
        return math.inf if self.low is None or self.high is None else (self.high - self.low) / (2.0 * self.median)


def summarize_latency(samples: Sequence[float]) -> LatencySummary:
    """Return the statistics of one or more positive samples."""
    values = np.sort(np.asarray(samples, dtype=np.float64))
    median = float(np.median(values))
    deviation = np.abs(values - median)
    mad = float(np.median(deviation))
    q10, q90 = (float(q) for q in np.quantile(values, (0.1, 0.9)))
    low = high = None
    if (rank := interval_rank(len(values))) is not None:
        low, high = float(values[rank]), float(values[len(values) - 1 - rank])
    return LatencySummary(len(values), median, mad, q10, q90, low, high, int((deviation > OUTLIER_MADS * mad).sum()))


def interval_rank(n: int, confidence: float = CONFIDENCE) -> int | None:
    """Return the number of sorted samples outside the median's interval at each end; None if `n` is too small.

    The number of samples below the median is binomial(n, 1/2) for any distribution, so order statistics bound the
    median: Conover, Practical Nonparametric Statistics, section 3.2.
    """
    tail, rank = 0.0, -1
    while rank + 1 < n / 2:
        tail += math.comb(n, rank + 1) * 0.5**n if n < 1000 else _normal_mass(n, rank + 1)
        if 2.0 * tail > 1.0 - confidence:
            break
        rank += 1
    return rank if rank >= 0 else None


def _normal_mass(n: int, k: int) -> float:
    """Return the probability of k under binomial(n, 1/2) by its normal limit, because 2^-n underflows for large n."""
    return math.sqrt(2.0 / (math.pi * n)) * math.exp(-((2 * k - n) ** 2) / (2 * n))


def converged(samples: Sequence[float], half_width: float, least: int) -> bool:
    """Return whether at least `least` samples give the median to within the fraction `half_width`."""
    return len(samples) >= least and summarize_latency(samples).half_width < half_width


def hopeless(samples: Sequence[float], best_s: float | None, factor: float) -> bool:
    """Return whether the median exceeds `factor` times the best, so that more samples would be wasted."""
    return best_s is not None and float(np.median(samples)) > factor * best_s
