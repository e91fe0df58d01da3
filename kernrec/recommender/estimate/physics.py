"""Enforce laws of physics on the costs from models, files and measured rows.

    memory   the tensors of a problem must fit into the GPU's memory
    finite   every time, power and energy is a positive, finite number
    bytes    a time is at least the compulsory DRAM bytes divided by the memory bandwidth
    roof     a time is at least the number of operations divided by the peak rate at the assumed core clock
    watts    a mean power is at most the assumed power limit

kernrec corrects a small violation: it raises the time until the law holds. After a large violation, it uses the
analytical model's estimate instead, and a note in the answer names the replaced value.
"""

from collections.abc import Iterator
from math import inf, isnan
from typing import TYPE_CHECKING

from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.model.analytical.microarchitecture import microarchitecture
from kernrec.model.analytical.sustained_roof import ideal_launch
from kernrec.model.baselines.operating_point import work_of
from kernrec.op import Problem
from kernrec.op.problem import ANY_LAYOUT
from kernrec.store import MeasuredAnswer
from kernrec.util.human import human, memory_text

if TYPE_CHECKING:
    from kernrec.model.baselines.bound import BaselinePrediction

_METER = 1.5
"""Maximum plausible ratio of measured power to power limit.

Some GPUs exceed a limit that is too low for their lowest clock. A recorded RTX 3090 drew 137 W with a limit of 100 W.
"""


def memory_needed(problem: Problem) -> float:
    return sum(problem.traffic[0].values())


def fits(problem: Problem, gpu: GPU) -> bool:
    return memory_needed(problem) <= gpu.usable_bytes


def refuse_too_large(problem: Problem, gpu: GPU) -> None:
    """Raise `KernrecError` if the tensors of a problem do not fit into a GPU's memory."""
    if (bytes_needed := memory_needed(problem)) > gpu.usable_bytes:
        needed, there = memory_text(bytes_needed), memory_text(gpu.usable_bytes)
        raise KernrecError(f"{problem.title} needs {needed} of memory for its tensors; the {gpu.title} has {there}")


def cold_seconds(problem: Problem, gpu: GPU) -> float:
    """Return the minimum time of a problem in seconds if L2 is empty."""
    return work_of(problem)[1] / (gpu.memory_bandwidth * microarchitecture(gpu).dram_efficiency)


def physical_bounds(problem: Problem, gpu: GPU) -> tuple[float, float]:
    """Return the minimum seconds that a problem needs for DRAM traffic, and the minimum clock cycles for arithmetic."""
    # A kernel that declares its own problem may read only a part of the tensors, so count no bytes.
    moved = 0 if problem.layout == ANY_LAYOUT else max(problem.traffic[1] - gpu.l2_bytes, 0)
    roof_clk = problem.flops / ideal_launch(gpu, problem.op, problem.dtype).peak_flops * gpu.boost_clock_hz
    return moved / gpu.memory_bandwidth, roof_clk


def violation_notes(refused: int, raised: int, seconds: float, least_s: float, replaced: bool) -> Iterator[str]:
    """Yield notes on estimated times that violate a law of physics.

    Args:
        refused: number of estimates that kernrec rejected, because the time is far too low.
        raised: number of estimates whose time kernrec raised to the physical minimum.
        seconds: first rejected time in seconds.
        least_s: physical minimum for `seconds`.
        replaced: whether kernrec uses the analytical model's times instead of the rejected times.
    """
    if refused:
        instead = "the analytical model is used instead" if replaced else "they are omitted"
        times = f"{human(seconds, 's')}; at least {human(least_s, 's')}"
        yield f"{refused} estimates are impossible ({times}), {instead}"
    if raised:
        yield f"{raised} estimates are raised to the GPU's minimum time"


def is_number(prediction: "BaselinePrediction") -> bool:
    """Return whether all numbers of a baseline's time and power are positive and finite."""
    ends = [prediction.latency_s.low, prediction.latency_s.value, prediction.latency_s.high]
    if prediction.power_w is not None:
        ends += [prediction.power_w.low, prediction.power_w.value, prediction.power_w.high]
    return min(ends) > 0.0 and max(ends) < inf and not any(map(isnan, ends))


def impossible(row: MeasuredAnswer, problem: Problem, gpu: GPU) -> bool:
    """Return whether a measured row violates a law of physics by more than the measurement error."""
    from kernrec.store.intake.plausible_times import floor_s

    limit_w = gpu.tdp_w if row.power_limit_w is None else row.power_limit_w
    drawn_w = row.power_w if row.power_w is not None else (row.energy_j or 0.0) / (row.latency_s or 1.0)
    least_s = 0.0 if problem.layout == ANY_LAYOUT else floor_s(problem, gpu)
    return not (least_s <= row.latency_s < inf and row.latency_s > 0.0 and 0.0 <= drawn_w <= _METER * limit_w)
