"""Times under a power limit: the minimum time for a problem, and the time of a launch in long runs.

An ideal launch performs only the problem's operations, at the peak rate, and moves each byte once. Bytes that fit in L2
cause no DRAM traffic. A power limit lowers the clock. The time of an ideal launch is the minimum time for a problem.
"""

from functools import lru_cache
from math import inf

from kernrec.gpu import GPU
from kernrec.model.analytical.launch_costs import NominalCosts
from kernrec.model.analytical.power import PowerModel
from kernrec.op import Problem
from kernrec.op.dtype import math_dtype
from kernrec.util.light_dataclass import dataclass

_THREADS = 32
_WIDE = ("f16", "tf32")
"""Data types whose multiplications take more energy than those of bf16, because their significands are wider."""
_ROOFED = ("matmul", "matvec", "attention", "moe")
"""Ops with a minimum number of operations. Convolutions have none, because Winograd's algorithm saves operations."""


@dataclass(frozen=True)
class IdealLaunch:
    """Rates and energies of an ideal launch of an op in a data type on a GPU."""

    peak_flops: float
    flop_j: float
    l2_bytes: float
    bandwidth: float
    byte_j: float

    def costs(self, problem: Problem) -> list[float]:
        """Return the costs of an ideal launch without a power limit, in the order of `NominalCosts`."""
        flops, moved = problem.flops, max(problem.bytes - self.l2_bytes, 0)
        return [flops / self.peak_flops, moved / self.bandwidth, 0.0, flops * self.flop_j, moved * self.byte_j]


@lru_cache(maxsize=64)
def ideal_launch(gpu: GPU, op: str, dtype: str) -> IdealLaunch:
    """Return the rates and energies of an ideal launch on a GPU."""
    power = PowerModel.for_gpu(gpu)
    peak, joules = arithmetic(gpu, power, dtype)
    # If the maximum rate of the op's arithmetic is unknown, count only the memory traffic.
    if op not in _ROOFED or not peak:
        peak, joules = inf, 0.0
    return IdealLaunch(peak, joules, gpu.l2_bytes, gpu.memory_bandwidth, power.event_j("dram.bytes"))


def arithmetic(gpu: GPU, power: PowerModel, dtype: str) -> tuple[float, float]:
    """Return (operations per second, joules per operation) of a GPU's fastest arithmetic in a data type.

    Rates assume the boost clock, and energies the nominal voltage. The rate is 0 if the GPU lacks the data type.
    """
    dtype = "i8" if dtype == "u8" else math_dtype(dtype)
    if tensor := gpu.peak_flops(dtype, tensor=True):
        tensor *= gpu.boost_clock_hz / gpu.tensor_clock_hz
        # Tensor cores at their peak rate are assumed to draw the same power in every data type except f16 and tf32.
        kind = "mma.f16" if dtype in _WIDE else "mma.bf16"
        return tensor, power.event_j(kind) * gpu.tensor_rate("f16") / gpu.tensor_rate(dtype)
    return gpu.peak_flops(dtype), power.event_j("issue.fma32") / (2 * _THREADS)


def long_run_s(
    gpu: GPU, power: PowerModel, problem: Problem, limit_w: float, latency_s: float, power_w: float, clock_hz: float
) -> float:
    """Return the latency in seconds of a launch that is repeated for a second or longer under a power limit.

    Args:
        limit_w: Power limit in watts.
        latency_s: Predicted latency in a short run, in seconds.
        power_w: Predicted power in a short run, in watts.
        clock_hz: Predicted clock in a short run, in hertz.
    """
    dtype = math_dtype(problem.dtype)
    if power.long_run == 1.0 or problem.flops / latency_s <= gpu.peak_flops(dtype) * clock_hz / gpu.boost_clock_hz:
        return latency_s
    # Clip, because rounding may move the predicted clock outside of the GPU's range.
    clock_hz = min(max(clock_hz, power.minimum_hz), power.maximum_hz)
    _, flop_j = arithmetic(gpu, power, problem.dtype)
    # All time is assumed to scale with the clock.
    cycles = clock_hz / power.boost_hz
    core_w = (power_w - power.board_w - float(power.leakage_at(clock_hz))) / float(power.voltage(clock_hz)) ** 2
    core_j = (core_w - power.clock_w * cycles) * latency_s + (power.long_run - 1.0) * problem.flops * flop_j
    limited = power.apply_power_limit(NominalCosts(latency_s * cycles, 0.0, 0.0, core_j, 0.0), limit_w, clock_hz)
    return max(float(limited.latency_s[0]), latency_s)
