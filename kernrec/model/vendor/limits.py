"""Minimum time of a call by the data sheet, from arithmetic and compulsory bytes at a GPU's highest rates.

A recording that is faster by more than `LEEWAY` timed another problem, so it is neither shipped nor used for training.
Benchmarks repeat a call, so L2 may still hold weights (or keys and values) from the previous call. `least_s` allows for
this.
"""

from functools import lru_cache

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.microarchitecture import l2_bytes_per_clk
from kernrec.op import Problem
from kernrec.op.dtype import math_dtype, weight_bytes
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

LEEWAY = 1.05
"""Factor by which a recording may be faster than the data sheet, because clocks and timers are not exact."""
WINOGRAD = 4.0
"""Factor by which F(4x4, 3x3) reduces multiplications (Lavin and Gray, arXiv 1509.09308). FFT saves less for 3x3."""
_FEWER = ("winograd", "fft", "gcgemm")
"""Parts of the names of cuDNN's kernels that need fewer multiplications than the definition."""


@dataclass(frozen=True)
class Rates:
    """Highest rates of a GPU for calls in one data type."""

    flops: float
    """FLOP/s at the boost clock, on the fastest pipes for this type."""
    dram: float
    """Bytes/s of the memory's pins."""
    l2: float
    """Bytes/s of L2."""
    l2_bytes: float


@lru_cache(maxsize=256)
def rates_of(gpu: GPU, dtype: str) -> Rates:
    """Return the highest rates of a GPU in a problem's data type."""
    math = math_dtype(dtype)
    tensor = gpu.peak_flops(math, tensor=True) * gpu.boost_clock_hz / gpu.tensor_clock_hz
    flops = max(tensor, gpu.peak_flops(math))
    return Rates(flops, gpu.memory_bandwidth, l2_bytes_per_clk(gpu) * gpu.boost_clock_hz, gpu.l2_bytes)


def least_s(flops: float | Array, moved: float | Array, rates: Rates) -> Array:
    """Return the minimum seconds of repeated calls, whose bytes stay in L2 up to its capacity.

    Args:
        flops: Operations of each call, (N,).
        moved: Compulsory bytes of each call, (N,).
        rates: Rates of the GPU.
    """
    memory_s = np.maximum(np.divide(moved, rates.l2), np.subtract(moved, rates.l2_bytes) / rates.dram)
    return np.asarray(np.maximum(np.divide(flops, rates.flops) if rates.flops else 0.0, memory_s))


def work_of(problem: Problem, kernel: str | None = None) -> tuple[float, float]:
    """Return the operations and the compulsory bytes of a problem.

    A mixture of experts with uneven routing reads the experts that its busiest GPU is expected to need.

    Args:
        problem: Problem of any op.
        kernel: Names of the kernels that ran, because some need fewer multiplications; None if unknown.
    """
    if problem.op == "moe" and problem.sizes["routing"]:
        return _uneven(problem)
    fewer = problem.op == "conv2d" and (kernel is None or any(name in kernel for name in _FEWER))
    return problem.flops / (WINOGRAD if fewer else 1.0), float(problem.bytes)


def _uneven(problem: Problem) -> tuple[float, float]:
    """Return `work_of` for a mixture of experts with uneven routing: its weights, and tokens in and out."""
    from kernrec.model.vendor.features.moe import active_experts

    sizes = problem.sizes
    of_expert = (2 + sizes["gated"]) * sizes["hidden"] * sizes["columns"] * weight_bytes(problem.dtype)
    return float(problem.flops), active_experts(sizes) * of_expert + 4.0 * sizes["tokens"] * sizes["hidden"]
