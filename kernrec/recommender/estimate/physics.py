"""Enforce laws of physics on estimates, whatever a model, a file or a user's row claims.

    memory   the tensors of a problem must fit into the GPU's memory
    finite   every time, power and energy is a positive number
    bytes    a time is at least the compulsory DRAM bytes over the memory's bandwidth
    roof     a time is at least the operations over the peak rate at the row's clock
    watts    no mean power exceeds the limit of its row

`rank` checks candidates with `possible`, `measured_rows` checks measured rows with `impossible`, and `baselines_of`
checks baselines with `is_number` and `operating_point.at_point`. A small violation is corrected: the time is raised to
the bound, or the launch is slowed to its limit. A large one is rejected, and the analytical model replaces it. Notes
name the rejected values.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf, isnan
from typing import TYPE_CHECKING

import numpy as np

from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.model.prior.launch_costs import CLOCK_HZ, LimitedCosts
from kernrec.model.prior.microarchitecture import RESTING, microarchitecture
from kernrec.model.vendor.limits import work_of
from kernrec.model.vendor.operating_point import ideal_of
from kernrec.op import Problem
from kernrec.op.problem import ANY_LAYOUT
from kernrec.recommender.estimate.costs import ENERGY, LATENCY, Costs
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.store import MeasuredAnswer
from kernrec.util.human import human, memory_text

if TYPE_CHECKING:
    from kernrec.model.vendor.bound import BaselinePrediction

Array = np.ndarray

REFUSED = 2.0
"""Minimum factor by which a predicted time is below the bound if it is rejected instead of corrected."""
_ROUNDING = 1e-9
_METER = 1.5
"""Minimum ratio of measured power to the power limit of an impossible row. Some GPUs exceed a limit that is too low
for their lowest clock: a recorded RTX 3090 drew 137 W under 100 W."""


def memory_needed(problem: Problem) -> float:
    """Return the bytes of a problem's tensors."""
    return sum(problem.tensor_bytes.values())


def fits(problem: Problem, gpu: GPU) -> bool:
    """Return whether a GPU's memory holds the tensors of a problem."""
    return memory_needed(problem) <= gpu.memory_bytes


def refuse_too_large(problem: Problem, gpu: GPU) -> None:
    """Raise `KernrecError` if a GPU's memory does not hold the tensors of a problem."""
    if not fits(problem, gpu):
        needed, there = memory_text(memory_needed(problem)), memory_text(gpu.memory_bytes)
        raise KernrecError(f"{problem.title} needs {needed} of memory for its tensors; the {gpu.title} has {there}")


def cold_seconds(problem: Problem, gpu: GPU) -> float:
    """Return the seconds to move the compulsory bytes from DRAM at achievable bandwidth, if L2 is empty."""
    return work_of(problem)[1] / (gpu.memory_bandwidth * microarchitecture(gpu).dram_efficiency)


def possible(
    costs: Costs,
    prior: Costs | None,
    limited: LimitedCosts,
    bounds: Array,
    gpu: GPU,
    points: tuple[OperatingPoint, ...],
    measured: Sequence[Array] = (),
) -> tuple[Costs, tuple[str, ...]]:
    """Return costs that obey the laws of physics, and a note for each kind of rejected value.

    Args:
        costs: costs of candidates, arrays (points, C).
        prior: the analytical model's costs of the same candidates, which replace rejected ones. None if `costs` are the
            analytical model's; rejected costs then become infinite.
        limited: the launches at the clocks that the limits allow.
        bounds: the candidates' `physical_bounds`.
        gpu: the GPU.
        points: the operating points.
        measured: at each point, the measured candidates, which do not change.
    """
    (least_s, roof_clk), clock_hz, limits_w = bounds, limited.costs[CLOCK_HZ], _limits_w(gpu, points)
    # The analytical model has equal launches at every point and already keeps the limits, so check one point.
    first = slice(0, 1) if prior is None else slice(None)
    latency, energy = costs.values[LATENCY, first] * (1.0 + _ROUNDING), costs.values[ENERGY, first]
    # Candidates without an estimate at a point are infinite there. A comparison with NaN is false, so NaN fails.
    least = np.minimum.reduce
    if (
        np.logical_and.reduce(energy <= latency * limits_w[first], axis=None)
        and least(energy, axis=None, initial=inf) > 0.0
        and least(latency - least_s, axis=None, initial=inf) >= 0.0
        and least(latency * clock_hz[first] - roof_clk, axis=None, initial=inf) >= 0.0
    ):
        return costs, ()
    latency, energy = costs.values[LATENCY] * (1.0 + _ROUNDING), costs.values[ENERGY]
    lawful = (energy <= latency * limits_w) & (energy > 0.0)
    lawful &= (latency >= least_s) & (latency * clock_hz >= roof_clk)
    for here, positions in zip(lawful, measured, strict=False):
        here[positions] = True
    if lawful.all():
        return costs, ()
    return _corrected(costs, prior, limited, ~lawful, np.maximum(least_s, roof_clk / clock_hz), gpu, points)


def physical_bounds(problems: Sequence[tuple[Problem, int]], gpu: GPU) -> Array:
    """Return the minimum seconds for the bytes beyond L2, and the minimum clocks (s x Hz) for the operations, (2, C).

    Args:
        problems: problems in the order of the candidates, each with its number of candidates.
        gpu: the GPU.
    """
    each = []
    for problem, _ in problems:
        moved = 0 if problem.layout == ANY_LAYOUT else max(problem.bytes - gpu.l2_bytes, 0)  # A gather reads a part.
        roof_clk = problem.flops / ideal_of(gpu, problem.op, problem.dtype).peak_flops * gpu.boost_clock_hz
        each.append((moved / gpu.memory_bandwidth, roof_clk))
    return np.array(each).T.repeat([count for _, count in problems], axis=1)


@lru_cache
def _limits_w(gpu: GPU, points: tuple[OperatingPoint, ...]) -> Array:
    """Return the power limits of operating points in watts, (points, 1)."""
    return np.array([point.limit_w(gpu) for point in points])[:, np.newaxis]


def _corrected(
    costs: Costs,
    prior: Costs | None,
    limited: LimitedCosts,
    broken: Array,
    least_s: Array,
    gpu: GPU,
    points: tuple[OperatingPoint, ...],
) -> tuple[Costs, tuple[str, ...]]:
    """Return costs whose `broken` entries, (points, C), are corrected or replaced by the analytical model's."""
    notes = []
    latency, energy, power_w = costs.values
    with np.errstate(invalid="ignore"):
        sane = (latency * REFUSED >= least_s) & (energy > 0.0) & np.isfinite(energy)
    if (refused := broken & ~sane).any():
        first = tuple(np.argwhere(refused)[0])
        seconds, least = (human(float(each[first]), "s") for each in (latency, np.broadcast_to(least_s, refused.shape)))
        count = int(refused.any(axis=0).sum())
        instead = "they are omitted" if prior is None else "the analytical model is used instead"
        notes.append(f"{count} estimates are impossible ({seconds}; at least {least}), {instead}")
        costs = _instead(costs, prior, refused)
        latency, energy, power_w = costs.values
    # If a time is below the bound, raise it to the bound at the predicted power.
    raised = np.where(broken, np.maximum(least_s / latency, 1.0), 1.0)
    # At the default limit, models learn times, so only a power above the limit is wrong.
    limits_w = _limits_w(gpu, points)
    drawn_w = energy / latency
    over = broken & (drawn_w > limits_w)
    learned_here = np.array([point.is_default(gpu) for point in points])[:, np.newaxis]
    rest_w = limited.static_j / limited.latency_s
    slower = np.where(over & ~learned_here, slowdown(drawn_w, rest_w, limits_w), 1.0) * raised
    share = np.where(over, np.minimum(limits_w / drawn_w, 1.0), 1.0)
    power_w = np.where(over, limits_w, power_w)
    if (below := raised > 1.05).any():
        notes.append(f"{int(below.any(axis=0).sum())} estimates are raised to the GPU's minimum time")
    values = np.stack((latency * slower, energy * (slower * share), power_w))
    return Costs(values, costs.kind, costs.kinds), tuple(notes)


def slowdown(drawn_w: Array, rest_w: Array, limit_w: Array) -> Array:
    """Return the slowdown factor that keeps a launch within a power limit that its learned power exceeds.

    The energy of its events is assumed constant. That is an upper bound, because a lower clock also lowers the voltage.

    Args:
        drawn_w: power without the limit, in W.
        rest_w: part of the power that does not depend on events, in W.
        limit_w: the limit, in W.
    """
    rest = np.minimum(rest_w, RESTING * limit_w)
    return np.asarray((drawn_w - rest) / (limit_w - rest))


def _instead(costs: Costs, prior: Costs | None, refused: Array) -> Costs:
    """Return costs with `refused` entries, (points, C), replaced by the analytical model's, or by infinity."""
    if prior is None:
        return Costs(np.where(refused, inf, costs.values), costs.kind, costs.kinds)
    kind = np.where(refused, prior.kind + costs.kinds.shape[-1], costs.kind)
    kinds = np.concatenate((costs.kinds, prior.kinds), -1)
    return Costs(np.where(refused, prior.values, costs.values), kind, kinds)


def is_number(prediction: "BaselinePrediction") -> bool:
    """Return whether a baseline's time and power are positive numbers."""
    ends = [prediction.latency_s.low, prediction.latency_s.value, prediction.latency_s.high]
    if prediction.power_w is not None:
        ends += [prediction.power_w.low, prediction.power_w.value, prediction.power_w.high]
    return min(ends) > 0.0 and max(ends) < inf and not any(map(isnan, ends))


def impossible(row: MeasuredAnswer, problem: Problem, gpu: GPU) -> bool:
    """Return whether a measured row violates a law of physics by more than the error of any meter or board."""
    from kernrec.store.intake.plausible_times import floor_s

    limit_w = gpu.tdp_w if row.power_limit_w is None else row.power_limit_w
    drawn_w = row.power_w if row.power_w is not None else (row.energy_j or 0.0) / (row.latency_s or 1.0)
    least_s = 0.0 if problem.layout == ANY_LAYOUT else floor_s(problem, gpu)
    return not (least_s <= row.latency_s < inf and row.latency_s > 0.0 and 0.0 <= drawn_w <= _METER * limit_w)
