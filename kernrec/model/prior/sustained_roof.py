"""The roof of a problem on a card at a power limit and clock: no kernel, ours or a stack's, takes less time.

An ideal launch does the operations of the problem at the peak rate and nothing else: no index is computed, nothing is
read twice, what fits L2 is not read at all. Its operations and bytes take the energy that `power.toml` has for them, so
a power limit lowers its clock as it does that of any kernel.
"""

from functools import lru_cache

from kernrec.gpu import GPU
from kernrec.model.prior.launch_costs import NominalCosts
from kernrec.model.prior.power import PowerModel
from kernrec.op import Problem
from kernrec.op.dtype import math_dtype

_THREADS = 32
_WIDE = ("f16", "tf32")
"""Data types whose products of significands take more energy than those of bf16."""
_ROOFED = ("matmul", "matvec", "attention", "moe")
"""Ops whose operations no algorithm saves; convolutions have Winograd's and Fourier's."""


def least_costs(problem: Problem, gpu: GPU, power: PowerModel) -> NominalCosts | None:
    """Time and energy of an ideal launch before any power limit; None for an op whose operations can be saved, and
    where the card has no arithmetic in the data type."""
    peak, joules = arithmetic(gpu, power, problem.dtype)
    if problem.op not in _ROOFED or not peak:
        return None
    moved = max(problem.bytes - gpu.l2_bytes, 0)
    return NominalCosts(
        core_s=problem.flops / peak,
        dram_s=moved / gpu.memory_bandwidth,
        fixed_s=0.0,
        core_j=problem.flops * joules,
        dram_j=moved * power.event_j("dram.bytes"),
    )


def arithmetic(gpu: GPU, power: PowerModel, dtype: str) -> tuple[float, float]:
    """(operations per second at the boost clock, joules of one at nominal voltage) of the fastest arithmetic in a data
    type; (0, 0) where the card has none.

    A tensor core at its peak takes the same power in every data type, but for f16 and tf32, whose significands are
    wider.
    """
    peak, event, of_event = _fastest(gpu, dtype)
    return peak, power.event_j(event) * of_event


@lru_cache(maxsize=64)
def _fastest(gpu: GPU, dtype: str) -> tuple[float, str, float]:
    """(operations per second, the event whose energy one takes, how much of it)."""
    dtype = "i8" if dtype == "u8" else math_dtype(dtype)
    if tensor := gpu.peak_flops(dtype, tensor=True):
        tensor *= gpu.boost_clock_hz / gpu.tensor_clock_hz
        event = "mma.f16" if dtype in _WIDE else "mma.bf16"
        return tensor, event, gpu.tensor_rate("f16") / gpu.tensor_rate(dtype)
    return gpu.peak_flops(dtype), "issue.fma32", 1.0 / (2 * _THREADS)
