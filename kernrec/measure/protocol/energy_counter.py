"""Compute power from the energy counter and from the power sensor.

The energy counter is updated every few tens of milliseconds, and each update appears late. A line through the updates
(value against time) has the correct slope, because a constant delay shifts all updates equally. Arrays have the shape
(readings,) and are sorted by time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kernrec.measure.device.interface import SensorReading
from kernrec.util.normal import DEVIATIONS

LEAST_TICKS = 10
TRUSTED_RATIO = 0.05
"""The counter is trusted if its energy differs from the power sensor's energy by at most this fraction."""

WRAP_J = 2.0**32 / 1000.0
"""Energy in joules at which a 32-bit counter of millijoules restarts at zero."""

SLOWDOWNS = ("HwSlowdown", "HwThermalSlowdown", "SwThermalSlowdown", "HwPowerBrakeSlowdown")
"""Clock event reasons that make a measurement invalid. `SwPowerCap` is missing, because running at the power limit is
normal."""


@dataclass(frozen=True)
class PowerSlope:
    """Mean power over a time window, from the energy counter."""

    power_w: float
    low_w: float
    """Lower end of the 90 % interval of the power."""
    high_w: float
    ticks: int
    """Number of counter updates in the window."""
    period_s: float
    """Median seconds between two counter updates."""


def unwrapped(energy_j: np.ndarray) -> np.ndarray | None:
    """Return the counter's readings with wrap-arounds undone, or None if the counter fell for another reason."""
    energy = np.array(energy_j, dtype=np.float64)
    for i in np.flatnonzero(np.diff(energy) < 0):
        # At a wrap-around, the raw reading falls from near the maximum to near zero.
        if energy_j[i] < 0.9 * WRAP_J or energy_j[i + 1] > 0.1 * WRAP_J:
            return None
        energy[i + 1 :] += WRAP_J
    return energy


def power_from_ticks(
    time_s: Sequence[float] | np.ndarray, energy_j: Sequence[float] | np.ndarray, start_s: float, end_s: float
) -> PowerSlope | None:
    """Return the mean power in a time window from the energy counter. Return None if the counter had fewer than ten
    updates."""
    time, energy = np.asarray(time_s, dtype=np.float64), unwrapped(np.asarray(energy_j, dtype=np.float64))
    if energy is None:
        return None
    updates = np.flatnonzero(np.diff(energy) > 0) + 1
    updates = updates[(time[updates] >= start_s) & (time[updates] <= end_s)]
    if len(updates) < LEAST_TICKS:
        return None
    t, e = time[updates], energy[updates]
    t_off, e_off = t - t.mean(), e - e.mean()
    spread = float((t_off**2).sum())
    power = float((t_off * e_off).sum()) / spread
    if power <= 0.0:
        return None
    residual = e_off - power * t_off
    error = DEVIATIONS * float(np.sqrt((residual**2).sum() / (len(t) - 2) / spread))
    return PowerSlope(power, power - error, power + error, len(t), float(np.median(np.diff(t))))


def mean_power(
    time_s: Sequence[float] | np.ndarray, power_w: Sequence[float] | np.ndarray, start_s: float, end_s: float
) -> float | None:
    """Return the mean of the power readings in a time window. Return None if there are fewer than two readings."""
    time, power = np.asarray(time_s, dtype=np.float64), np.asarray(power_w, dtype=np.float64)
    inside = (time >= start_s) & (time <= end_s) & np.isfinite(power)
    time, power = time[inside], power[inside]
    if len(time) < 2 or time[-1] <= time[0]:
        return None
    mean = float(((power[1:] + power[:-1]) / 2.0 * np.diff(time)).sum() / (time[-1] - time[0]))
    return mean if mean > 0.0 else None


def powers(readings: Sequence[SensorReading], start_s: float, end_s: float) -> tuple[PowerSlope | None, float | None]:
    """Return the mean power in a time window, from the energy counter and from the power sensor. A value is None if
    there are too few readings."""
    slope = None
    if all(reading.energy_j is not None for reading in readings):
        energy_j = [reading.energy_j or 0.0 for reading in readings]
        slope = power_from_ticks([reading.time_s for reading in readings], energy_j, start_s, end_s)
    power = [(reading.time_s, reading.power_w) for reading in readings if reading.power_w is not None]
    return slope, mean_power([t for t, _ in power], [p for _, p in power], start_s, end_s)


def is_trusted(ratio: float | None) -> bool:
    """Return whether the counter agrees with the power sensor. `ratio` is the counter's energy divided by the sensor's,
    or None if unknown."""
    return ratio is None or abs(ratio - 1.0) <= TRUSTED_RATIO


def reason_shares(reasons: Iterable[Iterable[str]]) -> dict[str, float]:
    """Return the fraction of readings with each clock event reason, the most frequent reason first."""
    readings = [frozenset(names) for names in reasons]
    counts: dict[str, int] = {}
    for names in readings:
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    return {name: count / len(readings) for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))}
