"""Lower bound on the time that any kernel needs for a problem, on a GPU with a power limit and a clock.

The bound is the time of an ideal launch. An ideal launch performs only the problem's operations, at the peak rate. It
computes no indices, moves each byte only once, and causes no DRAM traffic for the bytes that fit in L2. Its operations
and bytes take the energies in `power.toml`, so a power limit lowers its clock as it does for real kernels.
"""

from math import inf

from kernrec.gpu import GPU
from kernrec.model.analytical.power import PowerModel
from kernrec.op import Problem
from kernrec.op.dtype import math_dtype
from kernrec.util.light_dataclass import dataclass

_THREADS = 32
_WIDE = ("f16", "tf32")
"""Data types whose significands are wider than the significand of bf16, so that a multiplication takes more energy."""
_ROOFED = ("matmul", "matvec", "attention", "moe")
"""Ops whose number of operations no algorithm reduces. Convolutions are missing, because Winograd's algorithm and FFTs
reduce their number of operations."""


@dataclass(frozen=True)
class IdealLaunch:
    """Figures that determine the time and energy of an ideal launch of an op in a data type on a GPU."""

    peak_flops: float
    flop_j: float
    l2_bytes: float
    bandwidth: float
    byte_j: float

    def costs(self, problem: Problem) -> list[float]:
        """Return the time and energy of an ideal launch without a power limit, as the fields of `NominalCosts`."""
        flops, moved = problem.flops, max(problem.bytes - self.l2_bytes, 0)
        return [flops / self.peak_flops, moved / self.bandwidth, 0.0, flops * self.flop_j, moved * self.byte_j]


def ideal_launch(op: str, dtype: str, gpu: GPU, power: PowerModel) -> IdealLaunch:
    """Return the figures of an ideal launch on a GPU. Operations are assumed to take no time and no energy if some
    algorithm needs fewer of them, or if the GPU has no arithmetic in the data type. Then, only the bytes bound the
    time."""
    peak, joules = arithmetic(gpu, power, dtype)
    if op not in _ROOFED or not peak:
        peak, joules = inf, 0.0
    return IdealLaunch(peak, joules, gpu.l2_bytes, gpu.memory_bandwidth, power.event_j("dram.bytes"))


def arithmetic(gpu: GPU, power: PowerModel, dtype: str) -> tuple[float, float]:
    """Return (rate, energy) of a GPU's fastest arithmetic in a data type. The rate is in operations per second at the
    boost clock, and 0 if the GPU has no such arithmetic. The energy is in joules per operation at nominal voltage.

    At its peak rate, a tensor core is assumed to draw the same power in every data type, except for more power in f16
    and tf32, whose significands are wider.
    """
    dtype = "i8" if dtype == "u8" else math_dtype(dtype)
    if tensor := gpu.peak_flops(dtype, tensor=True):
        tensor *= gpu.boost_clock_hz / gpu.tensor_clock_hz
        kind = "mma.f16" if dtype in _WIDE else "mma.bf16"
        return tensor, power.event_j(kind) * gpu.tensor_rate("f16") / gpu.tensor_rate(dtype)
    return gpu.peak_flops(dtype), power.event_j("issue.fma32") / (2 * _THREADS)
