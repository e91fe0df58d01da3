"""What each candidate is expected to cost, how sure that is, and where the number comes from.

    prior     what the analytic model predicts, with the spread it has against cards that others measured
    measured  put over it: rows of the database for this GPU and problem; the predictions that remain are first put on
              the scale of the measurements

An estimate by any other source goes between the two: a function from `Estimates` to `Estimates`.

Why predictions are put on the measured scale. Most of what a prediction is wrong by is common to all configs of a
kernel on a problem. A prior that is too low by 30 % would place every config that nobody ran before all that somebody
did, and the reader would be sent away from the configs that are known to be good.

How. Let r be the logarithms of measured over predicted, of latency and of power apart, over the n configs of a kernel
that were measured. A prediction's error is taken to have a part of the config's own, of variance s = OWN x V, and a
part common to the kernel and problem, of variance t = (1 - OWN) x V; V is the variance behind the prior's interval. The
common part is then expected to be w x median(r) with

    w = t / (t + s / n)

which is 0.65 for one measurement and 0.90 for five. Where predictions turned out too low by more than t allows for, t
is median(r)**2: in doubt what somebody ran goes before what nobody did. What is left of the variance is s + t (1 - w):
the intervals of the predictions that remain shrink with its square root.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernrec.model.prior.launch_time import INTERVAL
from kernrec.model.prior.power import LimitedCosts
from kernrec.store import MeasuredAnswer

Array = np.ndarray

SOURCES = ("prior", "learned", "measured")
"""Where a number can come from; estimates hold the position here."""
PRIOR, LEARNED, MEASURED = range(3)

OWN = 0.35
"""Share of a prediction's variance that is the config's own. On recorded convolution spaces of three GPUs, five
measurements that fixed the scale cut a transferred model's error from 44 / 16 / 30 % to 26 / 10 / 7 %: to 0.59, the
median of the three, and so its variance to 0.35."""
_VARIANCE = (math.log(INTERVAL) / 1.645) ** 2  # of the prior: a 90 % interval is 1.645 deviations to either side

LATENCY_DRIFT, ENERGY_DRIFT = 0.01, 0.02
"""Least half-width of a measured interval, as a fraction: the drift of the card that the protocol lets pass before it
measures again. What one session states of itself does not know it."""
UNSTATED_ENERGY = 0.12
"""Half-width of a measured energy whose interval nobody stated: the error that MEASURING.md, section 5, gives for an
energy counter read at start and stop of one second."""


@dataclass(frozen=True, eq=False)
class Estimates:
    """Costs of C candidates with their 90 % intervals; arrays (C,). `*_source`: positions in `SOURCES`."""

    latency_s: Array
    latency_low_s: Array
    latency_high_s: Array
    energy_j: Array
    energy_low_j: Array
    energy_high_j: Array
    power_w: Array
    latency_source: Array
    energy_source: Array


@dataclass(frozen=True)
class Rescaling:
    """By what the predictions of a kernel were multiplied, and how many measured configs said so.

    `*_narrow`: by what the logarithmic widths of their intervals were.
    """

    latency: float
    power: float
    configs: int
    latency_narrow: float
    power_narrow: float

    def of(self, predicted: Estimates) -> Estimates:
        """Predictions of the same kernel and problem on the scale of the measurements."""
        latency = predicted.latency_s * self.latency
        energy = predicted.energy_j * (self.latency * self.power)
        # Energy is power for a time: it stays as unsure as the less certain of the two.
        energy_narrow = max(self.latency_narrow, self.power_narrow)
        return replace(
            predicted,
            latency_s=latency,
            latency_low_s=latency * (predicted.latency_low_s / predicted.latency_s) ** self.latency_narrow,
            latency_high_s=latency * (predicted.latency_high_s / predicted.latency_s) ** self.latency_narrow,
            energy_j=energy,
            energy_low_j=energy * (predicted.energy_low_j / predicted.energy_j) ** energy_narrow,
            energy_high_j=energy * (predicted.energy_high_j / predicted.energy_j) ** energy_narrow,
            power_w=predicted.power_w * self.power,
        )


def prior(limited: LimitedCosts) -> Estimates:
    """What the analytic model says."""
    latency, energy = limited.latency_s, limited.energy_j
    source = np.full(len(latency), PRIOR, dtype=np.int8)
    return Estimates(
        latency,
        latency / INTERVAL,
        latency * INTERVAL,
        energy,
        energy / INTERVAL,
        energy * INTERVAL,
        limited.power_w,
        source,
        source,
    )


def with_measured(
    predicted: Estimates, positions: Array, measured: Sequence[MeasuredAnswer]
) -> tuple[Estimates, Rescaling | None]:
    """The estimates with measurements in place of predictions, and the rest on their scale.

    positions: of the candidates that `measured`, in the same order, is about. Where only latency was measured, energy
    is the predicted power for the measured time, and its source remains that of the prediction.
    """
    if not len(positions):
        return predicted, None
    latency = np.array([row.latency_s for row in measured])
    energy = np.array([np.nan if row.energy_j is None else row.energy_j for row in measured])
    known = ~np.isnan(energy)
    at = positions[known]
    latency_scale, latency_narrow = _scale(latency / predicted.latency_s[positions])
    power_scale, power_narrow = _scale((energy / latency)[known] / predicted.power_w[at])
    rescaling = Rescaling(latency_scale, power_scale, len(positions), latency_narrow, power_narrow)
    rescaled = rescaling.of(predicted)

    columns = {name: column.copy() for name, column in vars(rescaled).items()}
    timed = latency / columns["latency_s"][positions]
    columns["latency_s"][positions] = latency
    columns["latency_low_s"][positions], columns["latency_high_s"][positions] = _interval(
        latency, [row.latency_low_s for row in measured], [row.latency_high_s for row in measured], LATENCY_DRIFT, 0.0
    )
    columns["latency_source"][positions] = MEASURED
    for name in ("energy_j", "energy_low_j", "energy_high_j"):
        columns[name][positions] *= timed
    columns["energy_j"][at] = energy[known]
    low, high = _interval(
        energy,
        [row.energy_low_j for row in measured],
        [row.energy_high_j for row in measured],
        ENERGY_DRIFT,
        UNSTATED_ENERGY,
    )
    columns["energy_low_j"][at], columns["energy_high_j"][at] = low[known], high[known]
    columns["power_w"][at] = [
        row.energy_j / row.latency_s if row.power_w is None else row.power_w
        for row in measured
        if row.energy_j is not None
    ]
    columns["energy_source"][at] = MEASURED
    return replace(predicted, **columns), rescaling


def carried_over(predicted: Estimates, there: Estimates, predicted_there: Estimates, rescaling: Rescaling) -> Estimates:
    """Predictions at one power limit in the light of measurements at another, `there`.

    What a measured config missed its prediction by there, it is expected to miss it by here; the others are put on the
    scale of the measurements. All of them remain predictions, with the intervals of such.
    """
    here, base = rescaling.of(predicted), rescaling.of(predicted_there)
    latency, energy = there.latency_s / base.latency_s, there.energy_j / base.energy_j  # 1 where nothing was measured
    return replace(
        here,
        latency_s=here.latency_s * latency,
        latency_low_s=here.latency_low_s * latency,
        latency_high_s=here.latency_high_s * latency,
        energy_j=here.energy_j * energy,
        energy_low_j=here.energy_low_j * energy,
        energy_high_j=here.energy_high_j * energy,
        power_w=here.power_w * (energy / latency),
    )


def _scale(ratios: Array) -> tuple[float, float]:
    """(what to multiply predictions by, what to multiply the logarithmic width of their intervals by)."""
    if not len(ratios):
        return 1.0, 1.0
    middle = float(np.median(np.log(ratios)))
    own, common = OWN * _VARIANCE, max((1.0 - OWN) * _VARIANCE, max(middle, 0.0) ** 2)
    weight = common / (common + own / len(ratios))
    return math.exp(weight * middle), math.sqrt((own + common * (1.0 - weight)) / _VARIANCE)


def _interval(
    value: Array, low: Sequence[float | None], high: Sequence[float | None], least: float, unstated: float
) -> tuple[Array, Array]:
    """The stated interval around measured values, at least as wide as the card drifts; arrays (N,)."""

    def stated(bounds: Sequence[float | None], side: float) -> Array:
        known = np.array([np.nan if bound is None else bound for bound in bounds])
        return np.where(np.isnan(known), value * (1.0 + side * unstated), known)

    return np.minimum(stated(low, -1.0), value * (1.0 - least)), np.maximum(stated(high, 1.0), value * (1.0 + least))
