"""Report measurements that contradict themselves, the limits of the GPU, or the work of the kernel.

A measurement may have read the clock, power or time of another GPU, another kernel or an idle period. Certainty is
impossible, so a doubtful time keeps a tenth of its weight in training, and a doubtful energy is ignored.
"""

from collections.abc import Iterator
from dataclasses import dataclass

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
"""Weight in training of a row whose time is doubtful. Other rows have weight 1."""
ENERGY_APART = 1.5
"""Largest plausible ratio of energy / time to measured power, or of measured power to energy / time. The limit is high,
because power readings lag, and are up to a third too low in a loop of one second."""
ABOVE_LIMIT = 1.15
"""Largest plausible ratio of mean power to the highest power limit. Limits are enforced over tens of milliseconds, and
energy counters are off by 5 %."""
BELOW_REST = 0.9
"""Smallest plausible ratio of mean power to the idle power before the run. Sensors are off by 5 %."""
ABOVE_CLOCK = 1.03
"""Largest plausible ratio of a clock reading to the highest clock. Clocks have steps of 15 MHz."""
TOO_FAST = 0.8
"""Smallest plausible ratio of a measured time to the theoretical minimum. Boards overclock memory to 1.2 times the data
sheet's rate. The fastest recorded matmul has a ratio of 0.95."""
_NAMED = 3

_WRONG_ENERGY = "only in their energy, which contradicts time and power or the GPU's power limit"
_AT_REST = "only in their energy, which is below idle power"
_WRONG_CLOCK = "which state a clock that the GPU does not reach"
_WRONG_TIME = "which take less time than their arithmetic or bytes need at the stated clock"


@dataclass(frozen=True)
class Judgement:
    """Contradictions in N rows."""

    trust: Array
    """Weight of each row's time in training."""
    wrong_energy: Array
    """Whether each row's energy is wrong."""
    left_out: dict[str, int]
    """Number of ignored energies, keyed by reason."""
    doubted: dict[str, int]
    """Number of measured latencies with reduced weight, keyed by reason."""


def judge(
    inputs: ModelInputs, latency_s: Array, energy_j: Array, power_w: Array, clock_hz: Array, rest_w: Array
) -> Judgement:
    """Return the contradictions in N measurements of one kernel on one GPU and problem. NaN marks a missing value.
    `clock_hz` is the mean core clock during the run, and `rest_w` the power of the idle GPU before the run."""
    gpu, power = inputs.gpu, PowerModel.for_gpu(inputs.gpu)
    wrong_energy = contradicting(gpu, latency_s, energy_j, power_w)
    at_rest = ~wrong_energy & (energy_j / latency_s < BELOW_REST * rest_w)
    wrong_clock = clock_hz > ABOVE_CLOCK * power.maximum_hz
    known_hz = np.where(np.isfinite(clock_hz) & ~wrong_clock, clock_hz, power.maximum_hz)
    beyond_l2 = np.maximum(inputs.bytes - gpu.l2_bytes, 0.0)
    least_s = least_seconds(inputs.changed(clock_hz=known_hz, fixed_s=np.nan, bytes=beyond_l2))
    too_fast = ~wrong_clock & (latency_s < TOO_FAST * least_s)
    left_out = {_WRONG_ENERGY: int(wrong_energy.sum()), _AT_REST: int(at_rest.sum())}
    doubted = {_WRONG_CLOCK: int(wrong_clock.sum()), _WRONG_TIME: int(too_fast.sum())}
    return Judgement(np.where(wrong_clock | too_fast, TRUST, 1.0), wrong_energy | at_rest, left_out, doubted)


def contradicting(gpu: GPU, latency_s: Array, energy_j: Array, power_w: Array) -> Array:
    """Return for each row whether the energy contradicts time and power, or exceeds the GPU's highest power limit."""
    drawn_w = energy_j / latency_s
    # Ignore small differences, because energy and power come from different readings and runs.
    apart = np.abs(np.log(drawn_w) - np.log(power_w)) > np.log(ENERGY_APART)
    return np.asarray(apart | (drawn_w > ABOVE_LIMIT * PowerModel.for_gpu(gpu).power_max_w))


def named_rows(database: Database) -> Iterator[str]:
    """Yield a line of text for each GPU and kind of contradiction in a database."""
    # Contradictions that need a kernel's profile are not checked.
    for (name,) in database.query("SELECT DISTINCT gpu FROM db.measurement ORDER BY 1"):
        try:
            gpu = find_gpu(str(name))
        except UsageError:  # The catalog may lack the GPU.
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
