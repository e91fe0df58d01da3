"""Power of a backend's kernel by the power model, given its time; power trees correct this prediction.

    W = the GPU's W at its clock + (arithmetic + bytes from DRAM through L2 to the SMs, in joules) / time,
        at most the power limit

A recorded GPU keeps the three figures that its trees were trained with. Other GPUs have current figures.
"""

from functools import lru_cache

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.power import PowerModel
from kernrec.model.prior.sustained_roof import arithmetic
from kernrec.model.vendor.bound import BESIDE_ARITHMETIC, Bound
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class PowerBase:
    """Power figures of a GPU in watts."""

    running_w: float
    """Power before any event, at the clock of a load without a power limit."""
    math_w: float
    """Additional power of tensor cores at the data sheet's rate, equal in every data type."""
    dram_w: float
    """Additional power at the data sheet's bandwidth, including L2 and L1. Without L2 and L1, power on an H200,
    predicted from recordings of Blackwell, is too low for DRAM-bound matmuls.
    """

    def watts(self, bound: Bound, latency_s: Array, most_w: float) -> Array:
        """Return the power, at most `most_w`, if problems take `latency_s`; the last axis is the problem."""
        events_j = self.math_w * bound.parts["math"] + self.dram_w * bound.parts["dram"]
        return np.asarray(np.minimum(self.running_w + events_j / latency_s, most_w))


@lru_cache(maxsize=64)
def power_base(gpu: GPU) -> PowerBase:
    """Return the figures of a GPU by the power model."""
    power = PowerModel.for_gpu(gpu)
    peak, joules = arithmetic(gpu, power, "bf16" if gpu.peak_flops("bf16", tensor=True) else "f16")
    beside = BESIDE_ARITHMETIC[gpu.peak_flops("f16", tensor=True) > 0]
    byte_j = power.event_j("dram.bytes") + power.event_j("l2.sectors") / 32 + power.event_j("l1.requests") / 128
    dram_w = gpu.memory_bandwidth * byte_j
    return PowerBase(float(power.power_at(power.running_hz, {})), beside * peak * joules, dram_w)
