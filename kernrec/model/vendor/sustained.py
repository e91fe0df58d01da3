"""Tensor core rate that a GPU sustains in large matmuls, at the clock under its power limit."""

from functools import lru_cache

from kernrec.gpu import GPU
from kernrec.model.prior.launch_costs import NominalCosts
from kernrec.model.prior.power import PowerModel
from kernrec.model.prior.sustained_roof import arithmetic

BESIDE_ARITHMETIC = {True: 1.59, False: 1.27}
"""Ratio of the energy of a matmul's core events to its arithmetic, on tensor cores (True) and outside (False): the
median over ten GPUs, for the best 8,192^3 kernel.
"""
_FLOPS = 2.0 * 8192.0**3


@lru_cache(maxsize=256)
def sustained_flops(gpu: GPU, dtype: str) -> float:
    """Return the FLOP/s of an 8,192^3 matmul whose core events take as much energy as in recorded matmuls."""
    power = PowerModel.for_gpu(gpu)
    peak, joules = arithmetic(gpu, power, dtype)
    seconds, core_j = _FLOPS / peak, _FLOPS * joules * BESIDE_ARITHMETIC[True]
    limited = power.apply_power_limit(NominalCosts(seconds, 0.0, 0.0, core_j, 0.0))
    return _FLOPS / float(limited.latency_s[0])
