"""Operating points of a request: the requested point, or the points of a sweep.

An objective that counts energy benefits from a lower power limit. So without `--power-limit` and `--clock`, it is
evaluated over a range of limits. Latency is lowest at the default limit and needs no sweep.
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
"""Number of power limits in a sweep, from the GPU's minimum to its maximum or default."""
CLOCKS = 8
"""Number of locked core clocks in a sweep, up to the boost clock."""
CLOCK_STEP_HZ = 15e6
"""Step between core clocks of NVIDIA GPUs, 15 MHz (`nvidia-smi -q -d SUPPORTED_CLOCKS`)."""


def power_limits(gpu: GPU) -> list[float]:
    """Return the power limits of a kernel's sweep in whole watts."""
    return list(_steps(gpu.power_min_w, gpu.power_max_w))


def sweep(gpu: GPU, limits: Sequence[float]) -> list[OperatingPoint]:
    """Return the operating points at the default power limit, then at `limits`."""
    return [OperatingPoint(limit) for limit in dict.fromkeys([gpu.tdp_w, *limits])]


def lower_limits(gpu: GPU) -> tuple[OperatingPoint, ...]:
    """Return the power limits of an op's sweep below the default.

    A board may accept more than its default, but users who ask for a config do not expect to raise the limit.
    """
    return _points_below(gpu.power_min_w, gpu.tdp_w)


def lowest_clock_hz(gpu: GPU) -> float:
    """Return the lowest core clock of a sweep in Hz."""
    return PowerModel.for_gpu(gpu).minimum_hz


def clocks(gpu: GPU, limit_w: float | None) -> tuple[OperatingPoint, ...]:
    """Return the locked core clocks of a sweep at a power limit."""
    steps = np.linspace(lowest_clock_hz(gpu), gpu.boost_clock_hz, CLOCKS + 1)[1:]
    return tuple([OperatingPoint(limit_w, float(step // CLOCK_STEP_HZ * CLOCK_STEP_HZ)) for step in steps])


def op_points(gpu: GPU, query: Query) -> tuple[OperatingPoint, ...]:
    """Return the operating points of a request about an op: the requested point, then the points of a sweep."""
    if query.clock_hz is not None:
        return (query.point,)
    swept = query.objective is not Objective.LATENCY and query.power_limit_w is None
    limits = lower_limits(gpu) if swept else ()
    if (most_w := query.max_power_w) is not None and query.power_limit_w is None and gpu.power_min_w <= most_w:
        # A limit at the bound keeps every config within it, and a lower limit costs time.
        limits = (*limits, OperatingPoint(most_w)) if most_w < gpu.tdp_w else limits
    return (query.point, *limits, *(clocks(gpu, query.power_limit_w) if query.clocks else ()))


def kernel_points(gpu: GPU, query: Query, evidence: Evidence, kernel: Kernel) -> list[OperatingPoint]:
    """Return the operating points of a request about one kernel, default first.

    The requested limit follows. Without a request, a range of limits and all measured limits follow.
    """
    if query.power_limit_w is None:
        limits = [*power_limits(gpu), *measured_limits(gpu, evidence, [kernel])]
    else:
        limits = [query.power_limit_w]
    return [*sweep(gpu, limits), *(clocks(gpu, query.power_limit_w) if query.clocks else ())]


def measured_limits(gpu: GPU, evidence: Evidence, kernels: Iterable[Kernel]) -> list[float]:
    """Return the power limits at which kernels were measured on a GPU, ascending."""
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
