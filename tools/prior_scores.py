"""How well predicted times order and state measured ones: the figures of `tools/evaluate_prior.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kernrec.training import scores

Array = np.ndarray
THREADS = 256
"""The block size that people take who do not tune."""


@dataclass(frozen=True)
class SpaceScore:
    """The prior on a sample of one recorded space, beside simpler ways to choose.

    A choice is scored by its efficiency: the best measured time of the sample over that of the choice, 1 is perfect.
    """

    set: str
    card: str
    recorded: int
    """Configs of the recording."""
    sampled: int
    """Configs of the sample that can be compared."""
    rank: float
    """Rank correlation of predicted and measured times."""
    error: float
    """Median of |predicted / measured - 1|, no scale fitted."""
    ratio: float
    """Geometric mean of predicted over measured."""
    first: float
    """Efficiency of the first choice."""
    best_of_5: float
    best_of_1_percent: float
    refused: int
    """Of the 15 best configs of the whole recording, those that kernrec does not recommend at all."""
    of_best: int
    """How many best configs were looked at: 15, or all of a small recording."""
    occupancy: float
    """Efficiency of the occupancy heuristic, the mean over configs that it cannot tell apart."""
    threads_256: float
    """Mean efficiency of the configs whose block is nearest to 256 threads."""
    random: float
    """Expected efficiency of a random config."""


def score_space(
    names: tuple[str, str],
    recorded: int,
    measured: Array,
    predicted: Array,
    heuristics: tuple[Array, Array],
    refused: tuple[int, int],
) -> SpaceScore:
    """The score of a sample.

    Args:
        names: of the set and the card.
        recorded: configs of the recording.
        measured: times, (N,).
        predicted: times, (N,).
        heuristics: (resident warps over the most an SM holds, threads of a block), each (N,).
        refused: (how many of the best configs are refused, how many were looked at).
    """
    occupancy, threads = heuristics
    order = scores.order_of(predicted)
    nearest = np.abs(np.log(threads / THREADS))
    return SpaceScore(
        *names,
        recorded=recorded,
        sampled=len(measured),
        rank=scores.rank_correlation(predicted, measured),
        error=scores.median_error(measured, predicted),
        ratio=float(np.exp(np.log(predicted / measured).mean())),
        first=scores.efficiency_at(measured, order, 1),
        best_of_5=scores.efficiency_at(measured, order, 5),
        best_of_1_percent=scores.efficiency_at(measured, order, round(len(order) / 100)),
        refused=refused[0],
        of_best=refused[1],
        occupancy=_expected(measured, -(np.round(occupancy, 6) * 4096.0 + threads)),
        threads_256=_expected(measured, np.round(nearest, 6)),
        random=scores.expected_random(measured, 1)[0],
    )


def _expected(measured: Array, badness: Array) -> float:
    """The mean efficiency of the configs that a heuristic holds equally good."""
    chosen = badness == badness.min()
    return float((measured.min() / measured[chosen]).mean())


_RESIDENTS = (1, 2, 3, 5, 8)
"""Where classes of resident blocks begin."""
_SLOW = 6.0
"""Configs that take longer than so many times the fastest say little about choices."""


@dataclass(frozen=True)
class ResidencyScore:
    """Whether times are over- or underestimated by how many blocks an SM holds, which nothing else shows as well."""

    set: str
    card: str
    medians: Sequence[tuple[float, int]]
    """For each class of `residency_titles`: median of predicted over measured, of how many configs."""


def residency_titles() -> list[str]:
    """The classes of resident blocks."""
    titles = [f"{low} to {high - 1}" if high - low > 1 else str(low) for low, high in pairwise(_RESIDENTS)]
    return [*titles, f"{_RESIDENTS[-1]} and more"]


def score_by_residents(names: tuple[str, str], measured: Array, predicted: Array, resident: Array) -> ResidencyScore:
    """The score of a sample.

    Args:
        names: of the set and the card.
        measured: times, (N,).
        predicted: times, (N,).
        resident: blocks that an SM holds, (N,).
    """
    fast = measured < _SLOW * measured.min()
    medians = []
    for low, high in pairwise((*_RESIDENTS, np.inf)):
        ratios = (predicted / measured)[fast & (resident >= low) & (resident < high)]
        medians.append((float(np.median(ratios)) if len(ratios) else 0.0, len(ratios)))
    return ResidencyScore(*names, medians=medians)


@dataclass(frozen=True)
class Agreement:
    """How well one recording of a kernel orders another one, of a card of the same architecture: predictions of one
    code cannot order both better than they order each other."""

    set: str
    first: str
    second: str
    configs: int
    """Configs that both have."""
    rank: float
    """Rank correlation of their times."""
    error: float
    """Median of how far their ratio is from its own median."""


def agreement(names: tuple[str, str, str], first: Mapping[str, float], second: Mapping[str, float]) -> Agreement | None:
    """The agreement of two recordings, times by config; None where fewer than five are in both.

    Args:
        names: of the set and the two recordings.
        first: times of the one.
        second: times of the other.
    """
    common = [config for config in first if config in second]
    if len(common) < 5:
        return None
    a, b = (np.array([times[config] for config in common]) for times in (first, second))
    scaled = b * float(np.median(a / b))
    return Agreement(*names, len(common), scores.rank_correlation(a, b), scores.median_error(a, scaled))


@dataclass(frozen=True)
class ShapeScore:
    """The prior on shapes, each with one measured time: of a library, a tuner's best, or a textbook kernel."""

    set: str
    card: str
    shapes: int
    rank: float
    error: float
    ratio: float
    low: float
    """Tenth percentile of predicted over measured."""
    high: float
    """Ninetieth percentile."""


def score_shapes(set: str, card: str, measured: Sequence[float], predicted: Sequence[float]) -> ShapeScore:
    """The score of predicted times of shapes, (N,) each."""
    a, b = np.array(measured), np.array(predicted)
    ratio = b / a
    return ShapeScore(
        set,
        card,
        len(a),
        scores.rank_correlation(b, a),
        scores.median_error(a, b),
        float(np.exp(np.log(ratio).mean())),
        float(np.quantile(ratio, 0.1)),
        float(np.quantile(ratio, 0.9)),
    )


@dataclass(frozen=True)
class SweepScore:
    """The block size that is chosen where one kernel was measured at several."""

    kernel: str
    card: str
    sizes: int
    """Block sizes measured."""
    chosen: float
    """Efficiency of kernrec's choice."""
    occupancy: float
    """Efficiency of the occupancy heuristic's choice."""
    threads_256: float
    """Efficiency of the block nearest to 256 threads."""


def within(values: Sequence[float]) -> int:
    """How many efficiencies are within 5 % of the best."""
    return sum(value >= 1.0 / (1.0 + scores.NEAR) for value in values)
