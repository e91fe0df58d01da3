"""Expected costs of each candidate, with intervals and sources.

If all predicted times of a kernel are 30 % too low, every unmeasured config would rank before all measured configs.
So measurements also scale the predictions for the kernel's unmeasured configs.

The logarithm of the analytical model's error has the variance V (`INTERVAL`), which is the sum of two variances:

    s = OWN x V          individual error of a config
    t = (1 - OWN) x V    error that all configs of a kernel share

Each measured config has a value r = log(measured / predicted), for latency or power. After n measurements, predictions
are multiplied by exp(w x median(r)) with the weight w = t / (t + s / n): 0.65 for n = 1, and 0.90 for n = 5. Scaling
reduces t to (1 - w) x t, and does not change s. If median(r)**2 exceeds t, median(r)**2 replaces t. The larger weight
then keeps unmeasured configs behind measured configs.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np

from kernrec.model.analytical.spread import INTERVAL, SOURCES, SPREAD, Estimate
from kernrec.store import MeasuredAnswer
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

Array = np.ndarray

PREDICTED, TRANSFERRED, LEARNED, MEASURED = range(4)

OWN: float = query.OWN_SHARE
"""Fraction of a prediction's variance that is individual to the config, unless a model states another fraction.

For recorded convolutions on three GPUs, scaling to five measurements reduced the error of a transferred model from 44
to 26 %, from 16 to 10 % and from 30 to 7 %. The median ratio of the errors is 26 / 44 = 0.59. The ratio of the
variances is 0.59**2 = 0.35.
"""


def kinds_of(below: Array | float, above: Array | float, source: Array | int, own: Array) -> Array:
    """Stack the arguments in an array with K columns. Estimates with equal intervals and sources share a column.

    Args:
        below: value / lower end of the 90 % interval.
        above: upper end of the 90 % interval / value.
        source: index in `SOURCES`.
        own: half-width, in logarithms, of the 90 % interval of the error that other configs do not share. The shape is
            (K,), or (2, K) for latency and energy.

    Returns:
        Array of shape (4, K) with one row per argument, or of shape (2, 4, K) for latency and energy.
    """
    kinds = np.empty((*own.shape[:-1], 4, own.shape[-1]))
    for row, values in enumerate((below, above, source, own)):
        kinds[..., row, :] = values
    return kinds


_BELOW, _ABOVE, _SOURCE, _OWN_ERROR = range(4)


class Estimates:
    """Latency or energy of C candidates in SI units, with 90 % intervals and sources.

    Arrays have the shape (C,) for one operating point, or (points, C) for several.
    """

    def __init__(self, value: Array, kind: Array, kinds: Array, low: Array | None = None) -> None:
        self.value, self._low = value, low
        self.kind = kind
        """Column of `kinds` that contains the interval and source of each estimate."""
        self.kinds = kinds
        """Intervals and sources, as returned by `kinds_of`, (4, K)."""

    @cached_property
    def low(self) -> Array:
        """Lower ends of the 90 % intervals."""
        return np.asarray(self.value / self.by_kind(_BELOW)) if self._low is None else self._low

    @cached_property
    def high(self) -> Array:
        """Upper ends of the 90 % intervals."""
        return np.asarray(self.value * self.by_kind(_ABOVE))

    @property
    def half_width(self) -> Array:
        """Half-widths of the 90 % intervals in logarithms, without regard to physical limits."""
        return np.asarray(0.5 * np.log(self.by_kind(_BELOW) * self.by_kind(_ABOVE)))

    @property
    def source(self) -> Array:
        """Index in `SOURCES` of the source of each estimate, int8."""
        return self.by_kind(_SOURCE).astype(np.int8)

    @property
    def own(self) -> Array:
        """Half-widths, in logarithms, of the 90 % intervals of the errors that other configs do not share."""
        return self.by_kind(_OWN_ERROR)

    def by_kind(self, row: int) -> Array:
        return np.asarray(self.kinds[row].take(self.kind))

    def item(self, place: tuple[int, ...]) -> Estimate:
        """Return the estimate of one candidate. The index is (candidate,) or (operating point, candidate)."""
        value = self.value.item(place)
        below, above, source, own = self.kinds[:, int(self.kind.item(place))].tolist()
        low = value / below if self._low is None else self._low.item(place)
        return Estimate(value, low, value * above, SOURCES[int(source)], own)


_VARIANCE = (math.log(INTERVAL) / DEVIATIONS) ** 2  # Variance of the logarithm of the analytical model's error.

LATENCY, ENERGY, POWER = range(3)
LATENCY_DRIFT, ENERGY_DRIFT = 0.01, 0.02
"""Minimum half-width of a measured cost's interval, as a fraction. Repeated measurements may differ by as much."""
UNSTATED_ENERGY = 0.12
"""Half-width, as a fraction, that is assumed for a measured energy without an interval (docs/protocol.md)."""


class Costs:
    """Latency, energy and power of C candidates at one or more operating points, with intervals and sources."""

    def __init__(self, values: Array, kind: Array, kinds: Array, low_s: Array | None = None) -> None:
        self.values = values
        """Latency in seconds, energy in joules and mean power in watts, (3, C) or (3, points, C)."""
        self.kind = kind
        """Column of `kinds` for each latency and energy, (2, C) or (2, points, C)."""
        self.kinds = kinds
        """Intervals and sources of latency and energy, as returned by `kinds_of`, (2, 4, K)."""
        self.low_s = low_s
        """Lower ends of the latencies' intervals, (points, C), or None if they follow from `kinds`."""

    @property
    def latency(self) -> Estimates:
        """Latency in seconds."""
        return Estimates(self.values[LATENCY], self.kind[LATENCY], self.kinds[LATENCY], self.low_s)

    @property
    def energy(self) -> Estimates:
        """Energy in joules."""
        return Estimates(self.values[ENERGY], self.kind[ENERGY], self.kinds[ENERGY])

    @property
    def power_w(self) -> Array:
        """Mean power in watts while a candidate runs, (C,) or (points, C)."""
        return np.asarray(self.values[POWER])

    def at(self, point: int | slice) -> "Costs":
        low_s = None if self.low_s is None else self.low_s[point]
        return Costs(self.values[:, point], self.kind[:, point], self.kinds, low_s)

    @classmethod
    def stacked(cls, points: Sequence["Costs"]) -> "Costs":
        """Combine costs of the same candidates. Each object in `points` has a single operating point."""
        firsts = accumulate((costs.kinds.shape[-1] for costs in points), initial=0)
        kind = np.stack([costs.kind + first for costs, first in zip(points, firsts, strict=False)], 1)
        kinds = np.concatenate([costs.kinds for costs in points], -1)
        return cls(np.stack([costs.values for costs in points], 1), kind, kinds)

    def scaled(self, *factors: Array | float) -> "Costs":
        """Return a copy. The three `factors` multiply latency, energy and power, in this order."""
        values = np.empty_like(self.values)
        for after, before, factor in zip(values, self.values, factors, strict=True):
            np.multiply(before, factor, out=after)
        return Costs(values, self.kind, self.kinds)

    def replaced(self, quantity: int, positions: Array, values: Array, kinds: Array) -> "Costs":
        """Return a copy with new values of one cost for N candidates.

        Args:
            quantity: cost to replace, `LATENCY` or `ENERGY`.
            positions: indices of the N candidates.
            values: new value for each candidate, in SI units.
            kinds: interval and source of each new value, as returned by `kinds_of`, (4, N).
        """
        changed, kind = self.values.copy(), self.kind.copy()
        changed[quantity, ..., positions] = values
        kind[quantity, ..., positions] = np.arange(len(positions)) + self.kinds.shape[-1]
        return Costs(changed, kind, np.concatenate((self.kinds, np.stack((kinds, kinds))), -1))


@dataclass(frozen=True)
class Rescaling:
    """Factors that scale the predictions for a kernel to its measurements, and the errors that remain."""

    latency: float
    power: float
    configs: int
    """Number of measured configs."""
    latency_common: float
    """Variance of the shared latency error after scaling, as a fraction of the variance before."""
    power_common: float
    """Variance of the shared power error after scaling, as a fraction of the variance before."""

    def apply(self, predicted: Costs) -> Costs:
        """Scale predictions for the same kernel and problem."""
        # Energy is power times time. So the less certain quantity determines the error of the energy.
        common = np.array([[self.latency_common], [max(self.latency_common, self.power_common)]])
        below, above, source, own = predicted.kinds.swapaxes(0, 1)

        def width(whole: Array) -> Array:
            return np.asarray(np.exp(np.sqrt(own * own + common * np.maximum(whole * whole - own * own, 0.0))))

        kinds = kinds_of(width(np.log(below)), width(np.log(above)), source, own)
        scaled = predicted.scaled(self.latency, self.latency * self.power, self.power)
        return Costs(scaled.values, scaled.kind, kinds)


_WIDTHS = np.array([[SPREAD.time], [SPREAD.energy]])
ANALYTICAL = kinds_of(_WIDTHS, _WIDTHS, PREDICTED, np.array([[SPREAD.own], [SPREAD.own_energy]]))
"""Interval and source of latencies and energies that the analytical model predicts, (2, 4, 1)."""


def with_measured(
    predicted: Costs, positions: Array, measured: Sequence[MeasuredAnswer]
) -> tuple[Costs, Rescaling | None]:
    """Replace predictions by measurements, and scale the other predictions to the measurements.

    Args:
        predicted: predicted costs of all candidates of a kernel at one operating point.
        positions: indices of the measured candidates, ascending.
        measured: measurements in the order of `positions`.

    Returns:
        New costs, and the factors on the predictions (None if there are no measurements).
    """
    if not len(positions):
        return predicted, None
    latency = np.array([row.latency_s for row in measured])
    energy = np.array([np.nan if row.energy_j is None else row.energy_j for row in measured])
    has_energy = ~np.isnan(energy)
    with_energy = positions[has_energy]
    latency_scale, latency_common = _scale(latency / predicted.values[LATENCY, positions])
    power_scale, power_common = _scale((energy / latency)[has_energy] / predicted.values[POWER, with_energy])
    rescaling = Rescaling(latency_scale, power_scale, len(positions), latency_common, power_common)
    rescaled = rescaling.apply(predicted)

    # If energy was not measured, use the predicted power and the measured time.
    rescaled.values[ENERGY, positions] *= latency / rescaled.values[LATENCY, positions]
    rescaled.values[POWER, with_energy] = [
        row.energy_j / row.latency_s if row.power_w is None else row.power_w
        for row in measured
        if row.energy_j is not None
    ]
    bounds = [(row.latency_low_s, row.latency_high_s) for row in measured]
    times = latency, measured_kinds(latency, *_interval(latency, bounds, LATENCY_DRIFT, 0.0))
    bounds = [(row.energy_low_j, row.energy_high_j) for row in measured]
    low, high = _interval(energy, bounds, ENERGY_DRIFT, UNSTATED_ENERGY)
    energies = energy[has_energy], measured_kinds(energy[has_energy], low[has_energy], high[has_energy])
    return rescaled.replaced(LATENCY, positions, *times).replaced(ENERGY, with_energy, *energies), rescaling


def measured_kinds(value: Array, low: Array, high: Array) -> Array:
    """Return the result of `kinds_of` for N measured values, given the ends of their 90 % intervals, (N,)."""
    return kinds_of(value / low, high / value, MEASURED, 0.5 * np.log(high / low))


def carried_over(predicted: Costs, elsewhere: Costs, predicted_elsewhere: Costs, rescaling: Rescaling) -> Costs:
    """Correct predictions at an operating point A by measurements at an operating point B.

    A prediction is assumed to have the same relative error at A and B.

    Args:
        predicted: predicted costs at A.
        elsewhere: costs at B after predictions were replaced by measurements.
        predicted_elsewhere: predicted costs at B.
        rescaling: factors that scale the predictions at B to the measurements.
    """
    here, base = rescaling.apply(predicted), rescaling.apply(predicted_elsewhere)
    latency, energy, _ = elsewhere.values / base.values  # Unmeasured configs have the ratio 1.
    return here.scaled(latency, energy, energy / latency)


def median(values: Array) -> float:
    """Return the median. This is faster than `np.median`, which also imports `np.ma`."""
    ascending = np.sort(values).tolist()
    return 0.5 * float(ascending[(len(ascending) - 1) // 2] + ascending[len(ascending) // 2])


def _scale(ratios: Array) -> tuple[float, float]:
    """Fit a factor on all predictions to the `ratios` measured / predicted of the measured configs.

    Return (factor, variance of the factor as a fraction of its variance without measurements).
    """
    if not len(ratios):
        return 1.0, 1.0
    middle = median(np.log(ratios))
    own, common = OWN * _VARIANCE, max((1.0 - OWN) * _VARIANCE, max(middle, 0.0) ** 2)
    weight = common / (common + own / len(ratios))
    return math.exp(weight * middle), common * (1.0 - weight) / ((1.0 - OWN) * _VARIANCE)


def _interval(
    value: Array, stated: Sequence[tuple[float | None, float | None]], least: float, unstated: float
) -> tuple[Array, Array]:
    """Return the lower and upper ends of the 90 % intervals of N measured values.

    Args:
        stated: recorded ends of each interval, or None for an end that was not recorded.
        least: minimum half-width, as a fraction of the value.
        unstated: half-width if an end was not recorded, as a fraction of the value.
    """

    def bound(bounds: Sequence[float | None], side: float) -> Array:
        values = np.array(bounds, dtype=np.float64)  # NumPy converts None to NaN.
        return np.where(np.isnan(values), value * (1.0 + side * unstated), values)

    lows, highs = zip(*stated, strict=True)
    return np.minimum(bound(lows, -1.0), value * (1.0 - least)), np.maximum(bound(highs, 1.0), value * (1.0 + least))
