"""Lower bound on the time of a problem on a GPU at a power limit and clock, for any kernel.

An ideal launch performs only the problem's operations, at the peak rate. It computes no index, reads nothing twice,
and reads nothing that fits L2. Its operations and bytes take the energy of `power.toml`, so a power limit lowers its
clock like any kernel's.
"""

from math import inf

from kernrec.gpu import GPU
from kernrec.model.analytical.power import PowerModel
from kernrec.op import Problem
from kernrec.op.dtype import math_dtype
from kernrec.util.light_dataclass import dataclass

_THREADS = 32
_WIDE = ("f16", "tf32")
"""Data types whose significands take more energy to multiply than bf16 significands."""
_ROOFED = ("matmul", "matvec", "attention", "moe")
"""Ops whose operations no algorithm avoids. Winograd's and Fourier's algorithms avoid operations of convolutions."""


@dataclass(frozen=True)
class IdealLaunch:
    """Figures of a GPU, an op and a data type that determine an ideal launch's time and energy."""

    peak_flops: float
    flop_j: float
    l2_bytes: float
    bandwidth: float
    byte_j: float

    def costs(self, problem: Problem) -> list[float]:
        """Return time and energy before any power limit: the fields of `NominalCosts`."""
        flops, moved = problem.flops, max(problem.bytes - self.l2_bytes, 0)
        return [flops / self.peak_flops, moved / self.bandwidth, 0.0, flops * self.flop_j, moved * self.byte_j]


def ideal_launch(op: str, dtype: str, gpu: GPU, power: PowerModel) -> IdealLaunch:
    """Return an ideal launch's figures on a GPU. Only bytes bound the time if algorithms can avoid operations, or if
    the GPU has no arithmetic in the data type.
    """
    peak, joules = arithmetic(gpu, power, dtype)
    if op not in _ROOFED or not peak:
        peak, joules = inf, 0.0
    return IdealLaunch(peak, joules, gpu.l2_bytes, gpu.memory_bandwidth, power.event_j("dram.bytes"))


def arithmetic(gpu: GPU, power: PowerModel, dtype: str) -> tuple[float, float]:
    """Return the rate (operations per second at the boost clock) and energy (joules at nominal voltage) of the fastest
    arithmetic in a data type; (0, 0) if the GPU has none.

    At its peak, a tensor core takes the same power in every data type except for f16 and tf32, whose significands are
    wider.
    """
    dtype = "i8" if dtype == "u8" else math_dtype(dtype)
    if tensor := gpu.peak_flops(dtype, tensor=True):
        tensor *= gpu.boost_clock_hz / gpu.tensor_clock_hz
        kind = "mma.f16" if dtype in _WIDE else "mma.bf16"
        return tensor, power.event_j(kind) * gpu.tensor_rate("f16") / gpu.tensor_rate(dtype)
    return gpu.peak_flops(dtype), power.event_j("issue.fma32") / (2 * _THREADS)
