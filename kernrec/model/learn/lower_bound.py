"""The least time that a candidate can take, below which no correction of the prior goes on a GPU nobody measured.

A learned correction makes some configs faster than the prior finds them. On a GPU with recordings these say how far;
on another one only physics does: every multiprocessor has to perform the arithmetic of its blocks at the rate of its
pipes, the compulsory bytes have to pass between DRAM and L2 once, and the launch takes its time. (The fastest config of
each recorded problem of Triton's matrix product, on an A100 and an H100, took at least 0.95 times as long.)
"""

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.learn.features import QUANTITIES, ModelInputs
from kernrec.util.engine import query

Array = np.ndarray

_LATENCY = QUANTITIES.index("latency_s")
_SHARPNESS = 16.0
"""Exponent of the smooth maximum of a corrected time and the bound: two equal ones take 2**(1/16) = 1.04 times one of
them, for no kernel reaches the peak, and configs that would all be at the bound keep their order. Of 4, 8, 16 and 32
the one that ranked recorded products in f32 best without making their times worse."""


def least_seconds(inputs: ModelInputs) -> Array:
    """Seconds that the candidates take at least, (C,).

    The arithmetic is that of the code, at the clock that the power limit leaves, with the rounds of blocks that it runs
    in, as the prior has it. A part of the time that is not known counts as nothing.
    """
    return _least_seconds(inputs.gpu, inputs.quantities())


def _least_seconds(gpu: GPU, quantities: Array) -> Array:
    seconds = np.empty(quantities.shape[1])
    query.least_seconds(quantities, gpu.memory_bandwidth, gpu.boost_clock_hz, seconds)
    return seconds


def least_log_ratio(inputs: ModelInputs) -> Array:
    """log(least time / the prior's time) of the candidates, (C,)."""
    return least_log_ratio_of(inputs.gpu, inputs.quantities())


def least_log_ratio_of(gpu: GPU, quantities: Array) -> Array:
    """The same of rows of `features.QUANTITIES` with the inputs, (Q, C)."""
    return np.asarray(np.log(_least_seconds(gpu, quantities) / quantities[_LATENCY]))


def bounded(log_ratio: Array, least: Array) -> Array:
    """log(expected / prior), (C,), raised where the expected time would be near or below the least one.

    Args:
        log_ratio: as a model predicts it.
        least: as from `least_log_ratio`.
    """
    return np.logaddexp(_SHARPNESS * log_ratio, _SHARPNESS * least) / _SHARPNESS
