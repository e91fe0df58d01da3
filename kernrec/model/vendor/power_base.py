"""The power of a stack's kernel by the model of power, given its time: the base that trees of power correct.

    W = the card's at its clock + (arithmetic + bytes from DRAM through L2 to the SMs, in joules) / time,
        at most the power limit

A card that was recorded keeps the three figures that its trees were trained with; another one has today's.
"""

from functools import lru_cache

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.power import PowerModel
from kernrec.model.prior.sustained_roof import arithmetic
from kernrec.model.vendor.bound import Bound
from kernrec.model.vendor.sustained import BESIDE_ARITHMETIC
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class PowerBase:
    """Watts of a card."""

    running_w: float
    """Before any event, at the clock of a load that no limit holds back."""
    math_w: float
    """More, with tensor cores at the data sheet's rate; the same in every data type."""
    dram_w: float
    """More, at the data sheet's bandwidth, the way through L2 and L1 included: without it, an H200 predicted by the
    recordings of Blackwell draws three quarters of what it should in products that DRAM bounds."""

    def watts(self, bound: Bound, latency_s: Array, most_w: float) -> Array:
        """Power in `latency_s`, whose last axis is that of the problems, up to `most_w`."""
        events_j = self.math_w * bound.parts["math"] + self.dram_w * bound.parts["dram"]
        return np.asarray(np.minimum(self.running_w + events_j / latency_s, most_w))


@lru_cache(maxsize=64)
def power_base(gpu: GPU) -> PowerBase:
    """The figures of a card by the model of power."""
    power = PowerModel.for_gpu(gpu)
    peak, joules = arithmetic(gpu, power, "bf16" if gpu.peak_flops("bf16", tensor=True) else "f16")
    beside = BESIDE_ARITHMETIC[gpu.peak_flops("f16", tensor=True) > 0]
    byte_j = power.event_j("dram.bytes") + power.event_j("l2.sectors") / 32 + power.event_j("l1.requests") / 128
    dram_w = gpu.memory_bandwidth * byte_j
    return PowerBase(float(power.power_at(power.running_hz, {})), beside * peak * joules, dram_w)
