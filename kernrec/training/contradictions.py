"""Find measurements that contradict themselves, the limits of the GPU, or the work of the kernel.

A measurement may be wrong because it read the clock, power or time of another GPU, of another kernel, or of an idle
period. Wrong measurements cannot be identified with certainty. So suspicious measurements are reported and have less
influence on training: a doubtful time has a tenth of the usual weight, and a doubtful energy is ignored.
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
"""Weight in training of a row whose time is doubtful. Other rows have the weight 1."""
ENERGY_APART = 1.5
"""Factor between energy / time and the measured power above which the two contradict each other. It is large, because
power readings lag, and are up to a third too low in a loop of one second.
"""
ABOVE_LIMIT = 1.15
"""Ratio of mean power to the highest power limit above which an energy counts as wrong. It is above 1, because limits
are enforced over tens of milliseconds, and energy counters are off by 5 %.
"""
BELOW_REST = 0.9
"""Ratio of mean power to idle power before the run below which an energy counts as wrong. It is below 1, because
sensors are off by 5 %.
"""
ABOVE_CLOCK = 1.03
"""Ratio of a clock reading to the highest settable clock above which the reading counts as wrong. It is above 1,
because clocks have steps of 15 MHz.
"""
TOO_FAST = 0.8
"""Ratio of a measured time to the theoretical minimum below which the time is doubtful. It is below 1, because boards
overclock memory to 1.2 times the data sheet's rate. The fastest recorded matmul has a ratio of 0.95.
"""
_NAMED = 3

_WRONG_ENERGY = "only in their energy, which contradicts time and power or the GPU's power limit"
_AT_REST = "only in their energy, which is below idle power"
_WRONG_CLOCK = "which state a clock that the GPU does not reach"
_WRONG_TIME = "which take less time than their arithmetic or bytes need at the stated clock"


@dataclass(frozen=True)
class Stated:
    """Measured quantities of N rows other than the latency, (N,) each. NaN if a quantity was not measured."""

    energy_j: Array
    power_w: Array
    clock_hz: Array
    """Mean core clock during the run."""
    rest_w: Array
    """Power in watts of the idle GPU before the run."""


@dataclass(frozen=True)
class Judgement:
    """Contradictions that `judge` found in N rows."""

    trust: Array
    """Weight of each row's time in training, (N,): 1, or `TRUST` if the time is doubtful."""
    wrong_energy: Array
    """Whether the energy of each row counts as wrong, (N,)."""
    left_out: dict[str, int]
    """Number of energies that are ignored, keyed by reason."""
    doubted: dict[str, int]
    """Number of times with reduced weight, keyed by reason."""


def judge(inputs: ModelInputs, latency_s: Array, stated: Stated) -> Judgement:
    """Find contradictions in N measurements of one kernel on one GPU and problem.

    Args:
        inputs: Model inputs of the N measured configs.
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
    """Return whether each energy contradicts the measured time and power, or implies a power above the GPU's highest
    power limit, (N,).

    Args:
        gpu: GPU of the measurements.
        latency_s: Measured times in seconds, (N,).
        energy_j: Measured energies in joules, (N,). NaN if not measured.
        power_w: Measured powers in watts, (N,). NaN if not measured.
    """
    drawn_w = energy_j / latency_s
    # Energy and power come from different readings of different runs, so small differences are normal.
    apart = np.abs(np.log(drawn_w) - np.log(power_w)) > np.log(ENERGY_APART)
    return np.asarray(apart | (drawn_w > ABOVE_LIMIT * PowerModel.for_gpu(gpu).power_max_w))


def named_rows(database: Database) -> Iterator[str]:
    """Yield a line for each GPU and each kind of contradiction in a database. Only contradictions that can be found
    without the kernels are considered. A line contains the number of measurements, the keys of the first ones, and the
    consequence for training.
    """
    for (name,) in database.query("SELECT DISTINCT gpu FROM db.measurement ORDER BY 1"):
        try:
            gpu = find_gpu(str(name))
        except UsageError:  # Skip GPUs that the catalog of this version of kernrec does not contain.
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
