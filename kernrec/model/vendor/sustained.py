"""The rate of tensor cores that a GPU holds in large products: at the clock that its power limit leaves."""

from functools import lru_cache

from kernrec.gpu import GPU
from kernrec.model.prior.launch_costs import NominalCosts
from kernrec.model.prior.power import PowerModel
from kernrec.model.prior.sustained_roof import arithmetic

BESIDE_ARITHMETIC = {True: 1.59, False: 1.27}
"""Energy of a product's core events over that of its arithmetic alone, on tensor cores and outside of them: the median
of the best kernel for 8,192^3 on ten cards."""
_FLOPS = 2.0 * 8192.0**3


@lru_cache(maxsize=256)
def sustained_flops(gpu: GPU, dtype: str) -> float:
    """Return FLOP/s of a product of 8,192^3 whose core events take the energy that recorded ones take."""
    power = PowerModel.for_gpu(gpu)
    peak, joules = arithmetic(gpu, power, dtype)
    seconds, core_j = _FLOPS / peak, _FLOPS * joules * BESIDE_ARITHMETIC[True]
    limited = power.apply_power_limit(NominalCosts(seconds, 0.0, 0.0, core_j, 0.0))
    return _FLOPS / float(limited.latency_s[0])
