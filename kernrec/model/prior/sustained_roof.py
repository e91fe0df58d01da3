"""The roof of a problem on a GPU at a power limit and clock: no kernel, kernrec's or a backend's, takes less time.

An ideal launch does the operations of the problem at the peak rate and nothing else: no index is computed, nothing is
read twice, what fits L2 is not read at all. Its operations and bytes take the energy that `power.toml` has for them, so
a power limit lowers its clock as it does that of any kernel.
"""

from math import inf

from kernrec.gpu import GPU
from kernrec.model.prior.power import PowerModel
from kernrec.op import Problem
from kernrec.op.dtype import math_dtype
from kernrec.util.light_dataclass import dataclass

_THREADS = 32
_WIDE = ("f16", "tf32")
"""Data types whose products of significands take more energy than those of bf16."""
_ROOFED = ("matmul", "matvec", "attention", "moe")
"""Ops whose operations no algorithm saves; convolutions have Winograd's and Fourier's."""


@dataclass(frozen=True)
class IdealLaunch:
    """Figures of a card, an op and a data type that an ideal launch takes its time and energy by."""

    peak_flops: float
    flop_j: float
    l2_bytes: float
    bandwidth: float
    byte_j: float

    def costs(self, problem: Problem) -> list[float]:
        """Time and energy before any power limit: the fields of `NominalCosts`."""
        flops, moved = problem.flops, max(problem.bytes - self.l2_bytes, 0)
        return [flops / self.peak_flops, moved / self.bandwidth, 0.0, flops * self.flop_j, moved * self.byte_j]


def ideal_launch(op: str, dtype: str, gpu: GPU, power: PowerModel) -> IdealLaunch:
    """Return the figures of a GPU. Operations count neither for an op whose operations can be saved nor in a data type
    in which the GPU has no arithmetic: then only bytes bound the time."""
    peak, joules = arithmetic(gpu, power, dtype)
    if op not in _ROOFED or not peak:
        peak, joules = inf, 0.0
    return IdealLaunch(peak, joules, gpu.l2_bytes, gpu.memory_bandwidth, power.event_j("dram.bytes"))


def arithmetic(gpu: GPU, power: PowerModel, dtype: str) -> tuple[float, float]:
    """(operations per second at the boost clock, joules of one at nominal voltage) of the fastest arithmetic in a data
    type; (0, 0) where the card has none.

    A tensor core at its peak takes the same power in every data type, but for f16 and tf32, whose significands are
    wider.
    """
    dtype = "i8" if dtype == "u8" else math_dtype(dtype)
    if tensor := gpu.peak_flops(dtype, tensor=True):
        tensor *= gpu.boost_clock_hz / gpu.tensor_clock_hz
        kind = "mma.f16" if dtype in _WIDE else "mma.bf16"
        return tensor, power.event_j(kind) * gpu.tensor_rate("f16") / gpu.tensor_rate(dtype)
    return gpu.peak_flops(dtype), power.event_j("issue.fma32") / (2 * _THREADS)
