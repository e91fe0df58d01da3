"""Measured rows that contradict themselves, the card or the code that ran.

Whoever measured may have read a clock, a power or a time of something else: of another card, another kernel, a window
in which nothing ran. No such row can be told from a true one for certain, so it is named, and teaches less: its time a
tenth, its energy nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kernrec.errors import UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.model.learn.features import ModelInputs
from kernrec.model.learn.lower_bound import least_seconds
from kernrec.model.prior.power import PowerModel
from kernrec.store import Database
from kernrec.util.human import counted, human

Array = np.ndarray

TRUST = 0.1
"""Weight of a row whose time is doubted, beside others."""
ENERGY_APART = 1.5
"""Factor beyond which energy over time contradicts the power that was measured: readings of power lag by up to a third
in a loop of a second."""
ABOVE_LIMIT = 1.15
"""Share of the highest power limit that no launch takes in the mean: limits hold over tens of milliseconds, and energy
counters are 5 % off."""
BELOW_REST = 0.9
"""Share of the power at rest, measured before, that a running card draws at least: sensors are 5 % off."""
ABOVE_CLOCK = 1.03
"""Share of the highest clock that can be set that is no error of a reading: clocks go in steps of 15 MHz."""
TOO_FAST = 0.8
"""Share of the least time below which a time is doubted. The fastest recorded product took 0.95 of it; the memory of
boards is set to 1.2 times the data sheet's rate."""
_NAMED = 3

_WRONG_ENERGY = "in their energy alone, which contradicts time and power or the card's power limit"
_AT_REST = "in their energy alone, which is less than the card draws at rest"
_WRONG_CLOCK = "which state a clock that the card does not reach"
_WRONG_TIME = "which take less time than their arithmetic or their bytes at the clock that they state"


@dataclass(frozen=True)
class Stated:
    """Statements of rows beside their times, (N,) each; NaN where it was not measured."""

    energy_j: Array
    power_w: Array
    clock_hz: Array
    """Mean core clock while they ran."""
    rest_w: Array
    """Power of the card before anything ran."""


@dataclass(frozen=True)
class Judgement:
    """The contradictions of N rows."""

    trust: Array
    """Weight of each time beside those that nothing speaks against, (N,)."""
    wrong_energy: Array
    """Whether the energy is no energy of this launch, (N,)."""
    left_out: dict[str, int]
    """Why energies are left out -> how many."""
    doubted: dict[str, int]
    """Why times count a tenth -> how many."""


def judge(inputs: ModelInputs, latency_s: Array, stated: Stated) -> Judgement:
    """Find the rows of a kernel on a card and problem that contradict themselves.

    Args:
        inputs: of the configs, (N,).
        latency_s: measured times, (N,).
        stated: what else was measured.
    """
    gpu, power = inputs.gpu, PowerModel.for_gpu(inputs.gpu)
    wrong_energy = contradicting(gpu, latency_s, stated.energy_j, stated.power_w)
    at_rest = ~wrong_energy & (stated.energy_j / latency_s < BELOW_REST * stated.rest_w)
    wrong_clock = stated.clock_hz > ABOVE_CLOCK * power.maximum_hz
    known_hz = np.where(np.isfinite(stated.clock_hz) & ~wrong_clock, stated.clock_hz, power.maximum_hz)
    beyond_l2 = np.maximum(np.asarray(inputs.bytes, dtype=np.float64) - gpu.l2_bytes, 0.0)
    least_s = least_seconds(replace(inputs, clock_hz=known_hz, fixed_s=None, bytes=beyond_l2))
    too_fast = ~wrong_clock & (latency_s < TOO_FAST * least_s)
    left_out = {_WRONG_ENERGY: int(wrong_energy.sum()), _AT_REST: int(at_rest.sum())}
    doubted = {_WRONG_CLOCK: int(wrong_clock.sum()), _WRONG_TIME: int(too_fast.sum())}
    return Judgement(np.where(wrong_clock | too_fast, TRUST, 1.0), wrong_energy | at_rest, left_out, doubted)


def contradicting(gpu: GPU, latency_s: Array, energy_j: Array, power_w: Array) -> Array:
    """Which measured energies contradict the time and power beside them, or take more power than the card accepts.

    Args:
        gpu: the card.
        latency_s: measured times, (N,).
        energy_j: energies, NaN where they were not measured, (N,).
        power_w: powers, NaN likewise, (N,).

    Returns:
        bool (N,).
    """
    drawn_w = energy_j / latency_s
    # The two come from other readings (a counter, samples) of other runs: only what no drift explains is wrong.
    apart = np.abs(np.log(drawn_w) - np.log(power_w)) > np.log(ENERGY_APART)
    return np.asarray(apart | (drawn_w > ABOVE_LIMIT * PowerModel.for_gpu(gpu).power_max_w))


def named_rows(database: Database) -> Iterator[str]:
    """A line for each card and each kind of contradiction that rows of a database show without their kernel: how many
    there are, the keys of the first, and what follows."""
    for (name,) in database.query("SELECT DISTINCT gpu FROM db.measurement ORDER BY 1"):
        try:
            gpu = find_gpu(str(name))
        except UsageError:  # of a card that another version of kernrec knows
            continue
        power = PowerModel.for_gpu(gpu)
        kinds = {
            f"state a clock above the {human(power.maximum_hz, 'Hz')} that the {gpu.title} accepts": (
                f"sm_clock_mean_hz > {ABOVE_CLOCK * power.maximum_hz!r}", "their times count a tenth",
            ),
            "draw less power than the card at rest": (
                f"energy_j / latency_s < {BELOW_REST} * idle_w", "their energies count nothing",
            ),
            f"draw more than the {power.power_max_w:.0f} W that the {gpu.title} accepts": (
                f"energy_j / latency_s > {ABOVE_LIMIT * power.power_max_w!r}", "their energies count nothing",
            ),
        }  # fmt: skip
        for what, (condition, follows) in kinds.items():
            query = f"SELECT measurement_id FROM db.measurement WHERE gpu = $1 AND outcome = 'ok' AND {condition}"
            if rows := database.query(f"{query} ORDER BY 1", [name]):
                some = ", ".join(str(key)[:12] for (key,) in rows[:_NAMED]) + (", ..." if len(rows) > _NAMED else "")
                yield f"{counted(len(rows), 'measurement')} ({some}) {what}; in training {follows}"
