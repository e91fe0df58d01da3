"""The expected costs of each candidate, how sure they are, and where the numbers come from.

    prior     the prediction of the analytic model, with its spread against cards that others measured
    measured  rows of the database for this GPU and problem take the place of predictions; the predictions that remain
              are first put on the scale of the measurements

An estimate from any other source goes between the two: a function from `Costs` to `Costs`.

Why predictions are put on the measured scale: most of a prediction's error is common to all configs of a kernel on a
problem. A prior that is 30 % too low would rank every config that nobody ran before all that somebody ran, and the
reader would be sent away from the configs that are known to be good.

How: let r be the logarithms of measured over predicted, of latency and of power separately, over the n configs of a
kernel that were measured. The error of a prediction has a part of the config's own, of variance s = OWN x V, and a part
common to the kernel and problem, of variance t = (1 - OWN) x V, where V is the variance behind `INTERVAL`.
The common part is then expected to be w x median(r) with

    w = t / (t + s / n)

which is 0.65 for one measurement and 0.90 for five. Where predictions turned out too low by more than t allows for, t
is median(r)**2: in doubt a config that somebody ran is ranked before one that nobody ran. Of the common part's variance
1 - w remains (of its t), and all of the own part's: the intervals of the remaining predictions shrink by that.
"""

import math
from collections.abc import Sequence

import numpy as np

from kernrec.model.prior.launch_costs import LimitedCosts
from kernrec.model.prior.spread import INTERVAL, OF_ENERGY, OF_TIME
from kernrec.recommender.estimate.estimates import MEASURED, OWN, PRIOR, Estimates, Kinds
from kernrec.store import MeasuredAnswer
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

Array = np.ndarray

_VARIANCE = (math.log(INTERVAL) / DEVIATIONS) ** 2  # of the prior

LATENCY_DRIFT, ENERGY_DRIFT = 0.01, 0.02
"""Least half-width of a measured interval, as a fraction: the drift of the card that the protocol lets pass before it
measures again. The interval that one session states does not include it."""
UNSTATED_ENERGY = 0.12
"""Half-width of a measured energy whose interval nobody stated: the error of an energy counter read at start and stop
of one second (docs/protocol.md, on energy)."""


@dataclass(frozen=True, eq=False)
class Costs:
    """The cost table of C candidates, at one operating point or at several."""

    latency: Estimates
    energy: Estimates
    power_w: Array
    """Mean power while running, (C,) or (points, C)."""

    def at(self, point: int | slice) -> "Costs":
        """Those of a table of several operating points at one of them, or at some."""
        return Costs(self.latency.at(point), self.energy.at(point), self.power_w[point])

    def part(self, part: slice) -> "Costs":
        """Those of some of the candidates."""
        if part.start == 0 and part.stop == self.power_w.shape[-1]:
            return self
        return Costs(self.latency.part(part), self.energy.part(part), self.power_w[..., part])

    @classmethod
    def stacked(cls, points: Sequence["Costs"]) -> "Costs":
        """The table of several operating points from theirs."""
        return cls(
            Estimates.stacked([costs.latency for costs in points]),
            Estimates.stacked([costs.energy for costs in points]),
            np.stack([costs.power_w for costs in points]),
        )


@dataclass(frozen=True)
class Rescaling:
    """By what the predictions of a kernel were multiplied to fit what was measured."""

    latency: float
    power: float
    configs: int
    """How many measured configs the factors stand on."""
    latency_common: float
    """Share of the variance that is left of the common error of latencies."""
    power_common: float
    """The same of power."""

    def apply(self, predicted: Costs) -> Costs:
        """Predictions of the same kernel and problem on the scale of the measurements."""
        # Energy is power for a time: it stays as unsure as the less certain of the two.
        return Costs(
            predicted.latency.narrowed(self.latency, self.latency_common),
            predicted.energy.narrowed(self.latency * self.power, max(self.latency_common, self.power_common)),
            predicted.power_w * self.power,
        )


_OF_TIME, _OF_ENERGY = (Kinds.even(widths.factors, PRIOR, widths.own) for widths in (OF_TIME, OF_ENERGY))
"""The kinds of the prior's predictions are the positions in `spread.REGIMES`."""


def prior_costs(limited: LimitedCosts) -> Costs:
    """The prediction of the analytic model."""
    latency_s, power_w, energy_j, *_, regimes = limited.costs
    return Costs(Estimates(latency_s, regimes, _OF_TIME), Estimates(energy_j, regimes, _OF_ENERGY), power_w)


def promising(latency: Array, energy: Array, count: int) -> Array:
    """Positions of the `count` candidates with the least latency and energy, half of them for each, ascending."""
    most = len(latency)
    if most <= count:
        return np.arange(most)
    chosen = np.zeros(most, dtype=bool)
    for values in (latency, energy):
        chosen[values.argpartition(count // 2)[: count // 2]] = True
    return chosen.nonzero()[0]


def with_measured(
    predicted: Costs, positions: Array, measured: Sequence[MeasuredAnswer]
) -> tuple[Costs, Rescaling | None]:
    """The costs with measurements in place of predictions, and the rest on their scale.

    Where only latency was measured, energy is the predicted power for the measured time, and its source remains that of
    the prediction.

    Args:
        predicted: costs of all candidates.
        positions: the candidates that were measured, ascending.
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

    # Without a measured energy it is the predicted power for the measured time.
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


def measured_kinds(value: Array, low: Array, high: Array) -> Kinds:
    """Return the kinds of measured values, all of whose error is their own; arrays (N,)."""
    sources = np.full(len(value), MEASURED, dtype=np.int8)
    return Kinds(value / low, high / value, sources, 0.5 * np.log(high / low))


def carried_over(predicted: Costs, elsewhere: Costs, predicted_elsewhere: Costs, rescaling: Rescaling) -> Costs:
    """Predictions at one operating point in the light of measurements at another, `elsewhere`.

    A measured config is expected to miss its prediction here by as much as there; the others are put on the scale of
    the measurements. All of them remain predictions, with the intervals of predictions.
    """
    here, base = rescaling.apply(predicted), rescaling.apply(predicted_elsewhere)
    latency = elsewhere.latency.value / base.latency.value  # 1 where nothing was measured
    energy = elsewhere.energy.value / base.energy.value
    return Costs(here.latency.scaled(latency), here.energy.scaled(energy), here.power_w * (energy / latency))


def median(values: Array) -> float:
    """As `np.median`, which takes longer than the trees of a model and imports `np.ma`."""
    ascending = np.sort(values).tolist()
    return 0.5 * float(ascending[(len(ascending) - 1) // 2] + ascending[len(ascending) // 2])


def _scale(ratios: Array) -> tuple[float, float]:
    """(what to multiply predictions by, the share of the variance that is left of the error common to them)."""
    if not len(ratios):
        return 1.0, 1.0
    middle = median(np.log(ratios))
    own, common = OWN * _VARIANCE, max((1.0 - OWN) * _VARIANCE, max(middle, 0.0) ** 2)
    weight = common / (common + own / len(ratios))
    return math.exp(weight * middle), common * (1.0 - weight) / ((1.0 - OWN) * _VARIANCE)


def _interval(
    value: Array, stated: Sequence[tuple[float | None, float | None]], least: float, unstated: float
) -> tuple[Array, Array]:
    """The stated interval around measured values, at least as wide as the card drifts; arrays (N,)."""

    def bound(bounds: Sequence[float | None], side: float) -> Array:
        values = np.array(bounds, dtype=np.float64)  # NaN for None
        return np.where(np.isnan(values), value * (1.0 + side * unstated), values)

    lows, highs = zip(*stated, strict=True)
    return np.minimum(bound(lows, -1.0), value * (1.0 - least)), np.maximum(bound(highs, 1.0), value * (1.0 + least))
