"""Expected costs of each candidate, with intervals and sources.

    predicted  prediction of the analytical model; its interval follows from published measurements
    measured   database rows for this GPU and problem replace predictions; the remaining predictions are first scaled
               to the measurements

An estimate from another source is a function from `Costs` to `Costs`, applied between these two steps.

Why predictions are scaled: all configs of a kernel on a problem share most of the prediction's error. An analytical
model that is 30 % too low would rank every unmeasured config before all measured ones. It would lead users away from
the configs that are known to be good.

How: let r be the logarithms of measured over predicted, of latency and of power separately, over the n measured
configs of a kernel. The error of a prediction consists of the config's own part, of variance s = OWN x V, and of a
part shared by the kernel and problem, of variance t = (1 - OWN) x V. V is the variance behind `INTERVAL`. The expected
shared part is w x median(r) with

    w = t / (t + s / n)

which is 0.65 for one measurement and 0.90 for five. If predictions are too low by more than t allows, t is
median(r)**2. So in doubt, a measured config ranks before an unmeasured config. A fraction 1 - w of the shared
variance t remains, and all of the own variance. The intervals of the remaining predictions shrink accordingly.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np

from kernrec.model.analytical.spread import INTERVAL, OF_ENERGY, OF_TIME, SOURCES, Estimate
from kernrec.store import MeasuredAnswer
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

Array = np.ndarray

PREDICTED, TRANSFERRED, LEARNED, MEASURED = range(4)

OWN: float = query.OWN_SHARE
"""Default fraction of a prediction's variance due to the config's own error. For times and energies of the analytical
model, `kernrec.model.analytical.spread` states both parts. On recorded convolutions of three GPUs, scaling to five
measurements reduced a transferred model's error from 44 / 16 / 30 % to 26 / 10 / 7 %. The median ratio is 0.59, so the
variance falls to 0.35."""


def kinds_of(below: Array | float, above: Array | float, source: Array | int, own: Array) -> Array:
    """Return the intervals and sources of K kinds of estimates, one row per argument, (4, K), or (2, 4, K).

    Args:
        below: factor from the lower end of the 90 % interval to the value.
        above: factor from the value to the upper end of the 90 % interval.
        source: indices into `SOURCES`.
        own: logarithmic half-width of the interval of each config's own error, for comparisons within a kernel and
            problem. These configs share the rest of the error. (K,), or (2, K) for two quantities.
    """
    kinds = np.empty((*own.shape[:-1], 4, own.shape[-1]))
    for row, values in enumerate((below, above, source, own)):
        kinds[..., row, :] = values
    return kinds


_BELOW, _ABOVE, _SOURCE, _OWN_ERROR = range(4)


class Estimates:
    """One quantity of C candidates with its 90 % interval, in SI units; arrays (C,) or (points, C). See `costs.Costs`.

    An answer shows few candidates, so arrays of intervals and sources are built only on access.
    """

    def __init__(self, value: Array, kind: Array, kinds: Array) -> None:
        self.value = value
        self.kind = kind
        """Column of `kinds` for each estimate, of any numeric type, in the shape of `value`."""
        self.kinds = kinds
        """Intervals and sources as from `kinds_of`, (4, K)."""

    @cached_property
    def _numbers(self) -> Array:
        return self.kind.astype(np.int64)

    @cached_property
    def low(self) -> Array:
        """Lower ends of the intervals."""
        return np.asarray(self.value / self.by_kind(_BELOW))

    @cached_property
    def high(self) -> Array:
        """Upper ends of the intervals."""
        return np.asarray(self.value * self.by_kind(_ABOVE))

    @property
    def source(self) -> Array:
        """Indices into `SOURCES`, int8."""
        return self.for_each(self.kinds[_SOURCE].astype(np.int8))

    @property
    def own(self) -> Array:
        """Logarithmic half-widths of the intervals of the configs' own errors."""
        return self.by_kind(_OWN_ERROR)

    def by_kind(self, row: int) -> Array:
        """Return a row of `kinds` for each candidate, in the shape of `value`."""
        return self.for_each(self.kinds[row])

    def for_each(self, values: Array) -> Array:
        """Map an array with one value per kind to an array with one value per candidate, in the shape of `value`."""
        return np.asarray(values.take(self._numbers))

    def item(self, place: tuple[int, ...]) -> Estimate:
        """Return the estimate of one candidate at one operating point."""
        value = self.value.item(place)
        below, above, source, own = self.kinds[:, int(self.kind.item(place))].tolist()
        return Estimate(value, value / below, value * above, SOURCES[int(source)], own)

    def items(self, places: tuple[Sequence[int], ...]) -> list[Estimate]:
        """Return the estimates of several candidates; each is given by an index for each axis of `value`."""
        columns = self.kinds.T[self.kind[places].astype(np.int64)].tolist()
        return [
            Estimate(value, value / below, value * above, SOURCES[int(source)], own)
            for value, (below, above, source, own) in zip(self.value[places].tolist(), columns, strict=True)
        ]

    def at(self, point: int | slice) -> "Estimates":
        """Select one or more operating points."""
        return Estimates(self.value[point], self.kind[point], self.kinds)


_VARIANCE = (math.log(INTERVAL) / DEVIATIONS) ** 2  # This is the variance of the analytical model's error.

LATENCY, ENERGY, POWER = range(3)
"""Rows of `Costs.values`."""
LATENCY_DRIFT, ENERGY_DRIFT = 0.01, 0.02
"""Minimum half-width of a measured interval, as a fraction. The protocol accepts this drift of a GPU without
another measurement. The interval stated by one session does not include it."""
UNSTATED_ENERGY = 0.12
"""Half-width of a measured energy without a stated interval: the error of an energy counter read at the start and stop
of one second (docs/protocol.md, on energy)."""


class Costs:
    """Cost table of C candidates, at one or more operating points."""

    def __init__(self, values: Array, kind: Array, kinds: Array) -> None:
        self.values = values
        """Latency in seconds, energy in joules, and mean power in watts while running, (3, C) or (3, points, C)."""
        self.kind = kind
        """Column of `kinds` for latency and energy, of any numeric type, (2, C) or (2, points, C)."""
        self.kinds = kinds
        """Intervals and sources of latency and energy as from `kinds_of`, (2, 4, K)."""

    @property
    def latency(self) -> Estimates:
        """Latency in seconds."""
        return Estimates(self.values[LATENCY], self.kind[LATENCY], self.kinds[LATENCY])

    @property
    def energy(self) -> Estimates:
        """Energy in joules."""
        return Estimates(self.values[ENERGY], self.kind[ENERGY], self.kinds[ENERGY])

    @property
    def power_w(self) -> Array:
        """Mean power in watts while running, (C,) or (points, C)."""
        return np.asarray(self.values[POWER])

    def at(self, point: int | slice) -> "Costs":
        """Select one or more operating points from a table."""
        return Costs(self.values[:, point], self.kind[:, point], self.kinds)

    def part(self, part: slice) -> "Costs":
        """Select some of the candidates."""
        return Costs(self.values[..., part], self.kind[..., part], self.kinds)

    @classmethod
    def stacked(cls, points: Sequence["Costs"]) -> "Costs":
        """Return one table from the tables of several operating points."""
        firsts = accumulate((costs.kinds.shape[-1] for costs in points), initial=0)
        kind = np.stack([costs.kind + first for costs, first in zip(points, firsts, strict=False)], 1)
        kinds = np.concatenate([costs.kinds for costs in points], -1)
        return cls(np.stack([costs.values for costs in points], 1), kind, kinds)

    def scaled(self, *factors: Array | float) -> "Costs":
        """Return a copy with latency, energy and power multiplied by factors, and unchanged sources."""
        values = np.empty_like(self.values)
        for after, before, factor in zip(values, self.values, factors, strict=True):
            np.multiply(before, factor, out=after)
        return Costs(values, self.kind, self.kinds)

    def replaced(self, quantity: int, positions: Array, values: Array, kinds: Array) -> "Costs":
        """Return a copy with other values of a quantity at some positions of C, with these columns of `kinds`."""
        changed, kind = self.values.copy(), self.kind.copy()
        changed[quantity, ..., positions] = values
        kind[quantity, ..., positions] = np.arange(len(positions)) + self.kinds.shape[-1]
        return Costs(changed, kind, np.concatenate((self.kinds, np.stack((kinds, kinds))), -1))


@dataclass(frozen=True)
class Rescaling:
    """Factors that scale a kernel's predictions to its measurements."""

    latency: float
    power: float
    configs: int
    """Number of measured configs behind the factors."""
    latency_common: float
    """Remaining fraction of the variance of the shared latency error."""
    power_common: float
    """Remaining fraction of the variance of the shared power error."""

    def apply(self, predicted: Costs) -> Costs:
        """Return predictions of the same kernel and problem, scaled to the measurements."""
        # Energy is power times time, so its uncertainty is the larger of their uncertainties.
        common = np.array([[self.latency_common], [max(self.latency_common, self.power_common)]])
        below, above, source, own = predicted.kinds.swapaxes(0, 1)

        def width(whole: Array) -> Array:
            return np.asarray(np.exp(np.sqrt(own * own + common * np.maximum(whole * whole - own * own, 0.0))))

        kinds = kinds_of(width(np.log(below)), width(np.log(above)), source, own)
        scaled = predicted.scaled(self.latency, self.latency * self.power, self.power)
        return Costs(scaled.values, scaled.kind, kinds)


OF_REGIMES = np.stack(
    [kinds_of(widths.factors, widths.factors, PREDICTED, widths.own) for widths in (OF_TIME, OF_ENERGY)]
)
"""Kinds of the analytical model's times and energies, indexed like `spread.REGIMES`, (2, 4, regimes)."""


def with_measured(
    predicted: Costs, positions: Array, measured: Sequence[MeasuredAnswer]
) -> tuple[Costs, Rescaling | None]:
    """Return the costs with measurements in place of predictions, and the other predictions scaled to them.

    If only latency was measured, energy is the predicted power times the measured time, and keeps the source of
    the prediction.

    Args:
        predicted: costs of all candidates.
        positions: measured candidates, ascending.
        measured: their measurements, in the same order.
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

    # Without measured energy, use the predicted power times the measured time.
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
    """Return the kinds of measured values, whose error belongs entirely to the config; arrays (N,)."""
    return kinds_of(value / low, high / value, MEASURED, 0.5 * np.log(high / low))


def carried_over(predicted: Costs, elsewhere: Costs, predicted_elsewhere: Costs, rescaling: Rescaling) -> Costs:
    """Return predictions at one operating point, corrected with measurements at another.

    A measured config is expected to have the same error at both points. Others are scaled to the measurements. All
    remain predictions, with the intervals of predictions.

    Args:
        predicted: predictions at this operating point.
        elsewhere: costs at the other operating point, including measurements.
        predicted_elsewhere: predictions at the other operating point.
        rescaling: factors that scale predictions to the measurements.
    """
    here, base = rescaling.apply(predicted), rescaling.apply(predicted_elsewhere)
    latency, energy, _ = elsewhere.values / base.values  # The ratio is 1 for unmeasured configs.
    return here.scaled(latency, energy, energy / latency)


def median(values: Array) -> float:
    """Return the median. `np.median` would take longer than a model's trees, and would import `np.ma`."""
    ascending = np.sort(values).tolist()
    return 0.5 * float(ascending[(len(ascending) - 1) // 2] + ascending[len(ascending) // 2])


def _scale(ratios: Array) -> tuple[float, float]:
    """Return the factor on predictions, and the remaining fraction of the variance of their shared error."""
    if not len(ratios):
        return 1.0, 1.0
    middle = median(np.log(ratios))
    own, common = OWN * _VARIANCE, max((1.0 - OWN) * _VARIANCE, max(middle, 0.0) ** 2)
    weight = common / (common + own / len(ratios))
    return math.exp(weight * middle), common * (1.0 - weight) / ((1.0 - OWN) * _VARIANCE)


def _interval(
    value: Array, stated: Sequence[tuple[float | None, float | None]], least: float, unstated: float
) -> tuple[Array, Array]:
    """Return the stated interval around measured values, at least as wide as the GPU's drift; arrays (N,)."""

    def bound(bounds: Sequence[float | None], side: float) -> Array:
        values = np.array(bounds, dtype=np.float64)  # The conversion turns None into NaN.
        return np.where(np.isnan(values), value * (1.0 + side * unstated), values)

    lows, highs = zip(*stated, strict=True)
    return np.minimum(bound(lows, -1.0), value * (1.0 - least)), np.maximum(bound(highs, 1.0), value * (1.0 + least))
