"""What traces of a card's sensors say: power from the energy counter, from the power sensor, and why clocks fell.

The energy counter moves in ticks, some tens of milliseconds apart, and shows a tick somewhat late. Its reading at a
moment of our choosing is therefore off by up to a tick of energy, but the slope over the moments at which it moved is
not: a constant lag shifts all of them alike. A trace that cannot tell gives None, never zero.

Times in seconds, energy in joules, power in watts; arrays are (readings,), in the order of time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_TICKS = 10
TRUSTED_RATIO = 0.05
"""A counter whose energy differs by more from the integral of power is not believed."""

WRAP_J = 2.0**32 / 1000.0
"""Where a 32-bit counter of millijoules starts again."""

SLOWDOWNS = ("HwSlowdown", "HwThermalSlowdown", "SwThermalSlowdown", "HwPowerBrakeSlowdown")
"""Clock event reasons that void a measurement. `SwPowerCap` does not: the power limit is how the card is run."""


@dataclass(frozen=True)
class CounterTicks:
    """The moments at which a counter was first seen at a new value, and those values."""

    time_s: np.ndarray
    energy_j: np.ndarray

    @property
    def period_s(self) -> float | None:
        """The usual time between two ticks; a missed one does not change it."""
        return float(np.median(np.diff(self.time_s))) if len(self.time_s) > 1 else None


@dataclass(frozen=True)
class PowerSlope:
    """Mean power over a window with its 90 % interval, and how many ticks of which period it rests on."""

    power_w: float
    low_w: float
    high_w: float
    ticks: int
    period_s: float


def unwrapped(energy_j: np.ndarray) -> np.ndarray | None:
    """A counter's readings as ever-growing energy; None where it fell and had not run over."""
    energy = np.array(energy_j, dtype=np.float64)
    for i in np.flatnonzero(np.diff(energy) < 0):
        # Run over: it was near its end and is near its beginning. Both readings are as they came, before correction.
        if energy_j[i] < 0.9 * WRAP_J or energy_j[i + 1] > 0.1 * WRAP_J:
            return None
        energy[i + 1 :] += WRAP_J
    return energy


def ticks(time_s: Sequence[float] | np.ndarray, energy_j: Sequence[float] | np.ndarray) -> CounterTicks | None:
    """The ticks in a trace of readings; None for a counter that fell. The first reading is none: it began earlier."""
    energy = unwrapped(np.asarray(energy_j, dtype=np.float64))
    if energy is None:
        return None
    moved = np.flatnonzero(np.diff(energy) > 0) + 1
    return CounterTicks(np.asarray(time_s, dtype=np.float64)[moved], energy[moved])


def power_from_ticks(
    time_s: Sequence[float] | np.ndarray, energy_j: Sequence[float] | np.ndarray, start_s: float, end_s: float
) -> PowerSlope | None:
    """Mean power between two moments from a trace of the counter that may be longer; None with fewer than ten ticks.

    The least-squares line through the ticks inside the window; its interval is 1.645 standard errors to each side.
    """
    found = ticks(time_s, energy_j)
    if found is None:
        return None
    inside = (found.time_s >= start_s) & (found.time_s <= end_s)
    if inside.sum() < LEAST_TICKS:
        return None
    t, e = found.time_s[inside], found.energy_j[inside]
    t_off, e_off = t - t.mean(), e - e.mean()
    spread = float((t_off**2).sum())
    power = float((t_off * e_off).sum()) / spread
    if power <= 0.0:
        return None
    residual = e_off - power * t_off
    error = 1.645 * float(np.sqrt((residual**2).sum() / (len(t) - 2) / spread))
    return PowerSlope(power, power - error, power + error, len(t), CounterTicks(t, e).period_s or 0.0)


def mean_power(
    time_s: Sequence[float] | np.ndarray, power_w: Sequence[float] | np.ndarray, start_s: float, end_s: float
) -> float | None:
    """The power sensor's mean between two moments (trapezoids); None where fewer than two readings lie between."""
    time, power = np.asarray(time_s, dtype=np.float64), np.asarray(power_w, dtype=np.float64)
    inside = (time >= start_s) & (time <= end_s) & np.isfinite(power)
    time, power = time[inside], power[inside]
    if len(time) < 2 or time[-1] <= time[0]:
        return None
    mean = float(((power[1:] + power[:-1]) / 2.0 * np.diff(time)).sum() / (time[-1] - time[0]))
    return mean if mean > 0.0 else None


def trusted(ratio: float | None) -> bool:
    """Whether a counter agrees with the power sensor; one that nothing could be held against is believed."""
    return ratio is None or abs(ratio - 1.0) <= TRUSTED_RATIO


def shares(reasons: Iterable[Iterable[str]]) -> dict[str, float]:
    """The share of readings at which each clock event reason held, the most frequent first."""
    readings = [frozenset(names) for names in reasons]
    counts: dict[str, int] = {}
    for names in readings:
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    return {name: count / len(readings) for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))}


def slowed(event_shares: Mapping[str, float]) -> str | None:
    """The reason, heat or the board's protection, for which a measurement is void; None where it holds."""
    return next((name for name in SLOWDOWNS if event_shares.get(name, 0.0) > 0.0), None)
