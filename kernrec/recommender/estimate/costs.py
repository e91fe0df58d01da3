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

import numpy as np

from kernrec.model.prior.launch_costs import LimitedCosts
from kernrec.model.prior.spread import INTERVAL, OF_ENERGY, OF_TIME
from kernrec.recommender.estimate.estimates import MEASURED, OWN, PRIOR, Estimates, kinds_of
from kernrec.store import MeasuredAnswer
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

Array = np.ndarray

_VARIANCE = (math.log(INTERVAL) / DEVIATIONS) ** 2  # This is the variance of the analytical model's error.

LATENCY_DRIFT, ENERGY_DRIFT = 0.01, 0.02
"""Minimum half-width of a measured interval, as a fraction. The protocol accepts this drift of a GPU without
another measurement. The interval stated by one session does not include it."""
UNSTATED_ENERGY = 0.12
"""Half-width of a measured energy without a stated interval: the error of an energy counter read at the start and stop
of one second (docs/protocol.md, on energy)."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Cost table of C candidates, at one or more operating points."""

    latency: Estimates
    energy: Estimates
    power_w: Array
    """Mean power in watts while running, (C,) or (points, C)."""

    def at(self, point: int | slice) -> "Costs":
        """Select one or more operating points from a table."""
        return Costs(self.latency.at(point), self.energy.at(point), self.power_w[point])

    def part(self, part: slice) -> "Costs":
        """Select some of the candidates."""
        if part.start == 0 and part.stop == self.power_w.shape[-1]:
            return self
        return Costs(self.latency.part(part), self.energy.part(part), self.power_w[..., part])

    def with_parts(self, parts: Sequence[tuple[slice, "Costs"]]) -> "Costs":
        """Return a copy in which some candidates have other costs."""
        if not parts:
            return self
        if parts[0][0] == slice(0, self.power_w.shape[-1]):
            return parts[0][1]
        latency, energy, power_w = [], [], self.power_w.copy()
        for part, costs in parts:
            latency.append((part, costs.latency))
            energy.append((part, costs.energy))
            power_w[..., part] = costs.power_w
        return Costs(self.latency.with_parts(latency), self.energy.with_parts(energy), power_w)

    def gathered(self, parts: Sequence[slice]) -> "Costs":
        """Return the costs of several parts of the candidates, concatenated."""
        if len(parts) < 2:
            return self.part(parts[0] if parts else slice(0, 0))
        power_w = np.concatenate([self.power_w[..., part] for part in parts], -1)
        return Costs(self.latency.gathered(parts), self.energy.gathered(parts), power_w)

    @classmethod
    def stacked(cls, points: Sequence["Costs"]) -> "Costs":
        """Return one table from the tables of several operating points."""
        return cls(
            Estimates.stacked([costs.latency for costs in points]),
            Estimates.stacked([costs.energy for costs in points]),
            np.stack([costs.power_w for costs in points]),
        )


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
        return Costs(
            predicted.latency.narrowed(self.latency, self.latency_common),
            predicted.energy.narrowed(self.latency * self.power, max(self.latency_common, self.power_common)),
            predicted.power_w * self.power,
        )


_OF_TIME, _OF_ENERGY = (kinds_of(widths.factors, widths.factors, PRIOR, widths.own) for widths in (OF_TIME, OF_ENERGY))
"""Kinds of the analytical model's predictions, indexed like `spread.REGIMES`."""


def prior_costs(limited: LimitedCosts) -> Costs:
    """Return the analytical model's predictions as a cost table."""
    latency_s, power_w, energy_j, *_, regimes = limited.costs
    return Costs(Estimates(latency_s, regimes, _OF_TIME), Estimates(energy_j, regimes, _OF_ENERGY), power_w)


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
    latency_scale, latency_common = _scale(latency / predicted.latency.value[positions])
    power_scale, power_common = _scale((energy / latency)[has_energy] / predicted.power_w[with_energy])
    rescaling = Rescaling(latency_scale, power_scale, len(positions), latency_common, power_common)
    rescaled = rescaling.apply(predicted)

    # Without measured energy, use the predicted power times the measured time.
    joules = rescaled.energy.value.copy()
    joules[positions] *= latency / rescaled.latency.value[positions]
    by_power = Estimates(joules, rescaled.energy.kind, rescaled.energy.kinds)
    bounds = [(row.latency_low_s, row.latency_high_s) for row in measured]
    times = latency, measured_kinds(latency, *_interval(latency, bounds, LATENCY_DRIFT, 0.0))
    bounds = [(row.energy_low_j, row.energy_high_j) for row in measured]
    low, high = _interval(energy, bounds, ENERGY_DRIFT, UNSTATED_ENERGY)
    energies = energy[has_energy], measured_kinds(energy[has_energy], low[has_energy], high[has_energy])
    power = rescaled.power_w.copy()
    power[with_energy] = [
        row.energy_j / row.latency_s if row.power_w is None else row.power_w
        for row in measured
        if row.energy_j is not None
    ]
    after = Costs(rescaled.latency.replaced(positions, *times), by_power.replaced(with_energy, *energies), power)
    return after, rescaling


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
    latency = elsewhere.latency.value / base.latency.value  # The ratio is 1 for unmeasured configs.
    energy = elsewhere.energy.value / base.energy.value
    return Costs(here.latency.scaled(latency), here.energy.scaled(energy), here.power_w * (energy / latency))


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
