"""Find measured rows that contradict themselves, the GPU or the code that ran.

A measurement may have read the clock, power or time of another GPU, of another kernel or of an idle window. Such rows
cannot be identified with certainty. So suspicious rows are reported and influence training less: their time has a tenth
of the weight, and their energy is dropped.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kernrec.errors import UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.model.analytical.power import PowerModel
from kernrec.model.learn.features import ModelInputs
from kernrec.model.learn.model import least_seconds
from kernrec.store import Database
from kernrec.util.human import counted, human

Array = np.ndarray

TRUST = 0.1
"""Weight of a row whose time is doubtful, relative to other rows."""
ENERGY_APART = 1.5
"""Minimum factor between energy / time and measured power that counts as a contradiction. Power readings lag by up to a
third in a loop of a second.
"""
ABOVE_LIMIT = 1.15
"""Impossible mean power, relative to the highest power limit. Limits are enforced over tens of milliseconds, and
energy counters are off by 5 %.
"""
BELOW_REST = 0.9
"""Impossible power of a running GPU, relative to its power at rest before the run. Sensors are off by 5 %."""
ABOVE_CLOCK = 1.03
"""Highest plausible clock reading, relative to the highest clock that can be set. Clocks have steps of 15 MHz."""
TOO_FAST = 0.8
"""Ratio to the theoretical minimum below which a time is doubtful. The fastest recorded matmul took 0.95 of this bound,
and boards overclock memory to 1.2 times the data sheet's rate.
"""
_NAMED = 3

_WRONG_ENERGY = "only in their energy, which contradicts time and power or the GPU's power limit"
_AT_REST = "only in their energy, which is below idle power"
_WRONG_CLOCK = "which state a clock that the GPU does not reach"
_WRONG_TIME = "which take less time than their arithmetic or bytes need at the stated clock"


@dataclass(frozen=True)
class Stated:
    """Quantities that rows state besides their times, (N,) each; NaN if not measured."""

    energy_j: Array
    power_w: Array
    clock_hz: Array
    """Mean core clock during the run."""
    rest_w: Array
    """Power of the GPU before the run."""


@dataclass(frozen=True)
class Judgement:
    """Contradictions that were detected in N rows."""

    trust: Array
    """Weight of each time relative to undoubted times, (N,)."""
    wrong_energy: Array
    """Whether the energy cannot belong to this launch, (N,)."""
    left_out: dict[str, int]
    """Number of dropped energies by reason."""
    doubted: dict[str, int]
    """Number of latencies with reduced weight, by reason."""


def judge(inputs: ModelInputs, latency_s: Array, stated: Stated) -> Judgement:
    """Find the rows of a kernel on a GPU and problem that contradict themselves.

    Args:
        inputs: Model inputs of the configs, (N,).
        latency_s: Measured times in seconds, (N,).
        stated: Other measured quantities.
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
    """Return a mask of the energies that contradict their time and power, or imply more power than the GPU accepts.

    Args:
        latency_s: Measured times, (N,).
        energy_j: Energies, NaN if not measured, (N,).
        power_w: Powers, NaN if not measured, (N,).

    Returns:
        bool (N,).
    """
    drawn_w = energy_j / latency_s
    # Energy and power come from different readings of different runs, so a difference is wrong only if no drift
    # explains it.
    apart = np.abs(np.log(drawn_w) - np.log(power_w)) > np.log(ENERGY_APART)
    return np.asarray(apart | (drawn_w > ABOVE_LIMIT * PowerModel.for_gpu(gpu).power_max_w))


def named_rows(database: Database) -> Iterator[str]:
    """Yield a line for each GPU and each kind of contradiction that is visible in database rows without the kernel.

    A line contains the number of rows, the keys of the first rows and the consequence.
    """
    for (name,) in database.query("SELECT DISTINCT gpu FROM db.measurement ORDER BY 1"):
        try:
            gpu = find_gpu(str(name))
        except UsageError:  # Another version of kernrec may know this GPU.
            continue
        power = PowerModel.for_gpu(gpu)
        kinds = {
            f"state a clock above the {human(power.maximum_hz, 'Hz')} that the {gpu.title} accepts": (
                f"sm_clock_mean_hz > {ABOVE_CLOCK * power.maximum_hz!r}", "their times get a tenth of the weight",
            ),
            "draw less than idle power": (
                f"energy_j / latency_s < {BELOW_REST} * idle_w", "their energies are ignored",
            ),
            f"draw more than the {power.power_max_w:.0f} W that the {gpu.title} accepts": (
                f"energy_j / latency_s > {ABOVE_LIMIT * power.power_max_w!r}", "their energies are ignored",
            ),
        }  # fmt: skip
        for what, (condition, follows) in kinds.items():
            query = f"SELECT measurement_id FROM db.measurement WHERE gpu = $1 AND outcome = 'ok' AND {condition}"
            if rows := database.query(f"{query} ORDER BY 1", [name]):
                some = ", ".join(str(key)[:12] for (key,) in rows[:_NAMED]) + (", ..." if len(rows) > _NAMED else "")
                yield f"{counted(len(rows), 'measurement')} ({some}) {what}; in training {follows}"
