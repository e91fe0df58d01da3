"""The operating points that a request is answered at: the one that is asked for, or a sweep.

An objective that counts energy gains from a lower power limit, so without `--power-limit` and `--clock` it is asked at
every limit of a range. Latency alone is not: it is least at the default limit.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.model.prior.power import PowerModel
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.request import Objective, Query
from kernrec.store import Evidence

POWER_LIMITS = 8
"""Power limits that a sweep tries, from the least that a GPU accepts to the most or to the default one."""
CLOCKS = 8
"""Locked core clocks that a sweep tries, up to the boost clock."""
CLOCK_STEP_HZ = 15e6
"""Core clocks of NVIDIA GPUs are set in steps of 15 MHz (`nvidia-smi -q -d SUPPORTED_CLOCKS`)."""


def power_limits(gpu: GPU) -> list[float]:
    """The power limits that a sweep tries for a kernel (W), in steps of whole watts."""
    return list(_steps(gpu.power_min_w, gpu.power_max_w))


def sweep(gpu: GPU, limits: Sequence[float]) -> list[OperatingPoint]:
    """The operating points at the default power limit, which comes first, and at these."""
    return [OperatingPoint(limit) for limit in dict.fromkeys([gpu.tdp_w, *limits])]


def lower_limits(gpu: GPU) -> tuple[OperatingPoint, ...]:
    """The power limits below the default one that a sweep tries for an op.

    A board may accept more than its default, too; nobody who asks for a config expects to be told to raise the limit.
    """
    return _points_below(gpu.power_min_w, gpu.tdp_w)


def lowest_clock_hz(gpu: GPU) -> float:
    """The lowest core clock that a sweep tries."""
    return PowerModel.for_gpu(gpu).minimum_hz


def clocks(gpu: GPU, limit_w: float | None) -> tuple[OperatingPoint, ...]:
    """The locked core clocks that a sweep tries at a power limit."""
    steps = np.linspace(lowest_clock_hz(gpu), gpu.boost_clock_hz, CLOCKS + 1)[1:]
    return tuple([OperatingPoint(limit_w, float(step // CLOCK_STEP_HZ * CLOCK_STEP_HZ)) for step in steps])


def op_points(gpu: GPU, query: Query) -> tuple[OperatingPoint, ...]:
    """The operating points of a request about an op: the one that is asked for, and those of a sweep."""
    if query.clock_hz is not None:
        return (query.point,)
    swept = query.objective is not Objective.LATENCY and query.power_limit_w is None
    limits = lower_limits(gpu) if swept else ()
    if (most_w := query.max_power_w) is not None and query.power_limit_w is None and gpu.power_min_w <= most_w:
        # Nothing draws more than the limit, and a limit below it costs time.
        limits = (*limits, OperatingPoint(most_w)) if most_w < gpu.tdp_w else limits
    return (query.point, *limits, *(clocks(gpu, query.power_limit_w) if query.clocks else ()))


def kernel_points(gpu: GPU, query: Query, evidence: Evidence, kernel: Kernel) -> list[OperatingPoint]:
    """The operating points of a request about one kernel: the default one, and the limit that is asked for, else a
    range of limits and those that the kernel was measured at."""
    if query.power_limit_w is None:
        limits = [*power_limits(gpu), *measured_limits(gpu, evidence, [kernel])]
    else:
        limits = [query.power_limit_w]
    return [*sweep(gpu, limits), *(clocks(gpu, query.power_limit_w) if query.clocks else ())]


def measured_limits(gpu: GPU, evidence: Evidence, kernels: Iterable[Kernel]) -> list[float]:
    """The power limits that kernels were measured at on a GPU, ascending."""
    if not evidence.measured:
        return []
    hashes = {kernel.hash for kernel in kernels}
    limits = {row.power_limit_w for row in evidence.measured if row.kernel_hash in hashes}
    return sorted(limit for limit in limits if limit and gpu.power_min_w <= limit <= gpu.power_max_w)


@lru_cache
def _steps(least_w: float, most_w: float) -> tuple[float, ...]:
    return tuple([round(float(limit)) for limit in np.linspace(least_w, most_w, POWER_LIMITS)])


@lru_cache
def _points_below(least_w: float, most_w: float) -> tuple[OperatingPoint, ...]:
    return tuple([OperatingPoint(limit) for limit in _steps(least_w, most_w) if limit < most_w])
