"""Minimum time of a candidate, which corrections on an unmeasured GPU must respect.

A learned correction makes some configs faster than predicted. On a GPU with recordings, the recordings limit it. On
another GPU, only physics does: every multiprocessor must perform the arithmetic of its blocks at the rate of its pipes,
the compulsory bytes must pass between DRAM and L2 once, and the launch has an overhead. (The fastest config of each
recorded problem of Triton's matmul, on an A100 and an H100, took at least 0.95 times this minimum.)
"""

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.learn.features import QUANTITIES, ModelInputs
from kernrec.util.engine import query

Array = np.ndarray

_LATENCY = QUANTITIES.index("latency_s")
_SHARPNESS = 16.0
"""Exponent of the smooth maximum of a corrected time and the bound. For equal times, it is 2**(1/16) = 1.04 times them,
because no kernel reaches the peak. Configs near the bound keep their order. Among 4, 8, 16 and 32, this exponent ranked
recorded f32 matmuls best without larger errors of their times.
"""


def least_seconds(inputs: ModelInputs) -> Array:
    """Return the minimum seconds of the candidates, (C,).

    The bound counts the code's arithmetic at the clock under the power limit, in the modeled rounds of blocks. Unknown
    parts of the time count as zero.
    """
    return _least_seconds(inputs.gpu, inputs.quantities())


def _least_seconds(gpu: GPU, quantities: Array) -> Array:
    seconds = np.empty(quantities.shape[1])
    query.least_seconds(quantities, gpu.memory_bandwidth, gpu.boost_clock_hz, seconds)
    return seconds


def least_log_ratio(inputs: ModelInputs) -> Array:
    """Return log(minimum time / analytical model's time) of the candidates, (C,)."""
    return least_log_ratio_of(inputs.gpu, inputs.quantities())


def least_log_ratio_of(gpu: GPU, quantities: Array) -> Array:
    """Return `least_log_ratio` for rows of `features.QUANTITIES` with the inputs, (Q, C)."""
    return np.asarray(np.log(_least_seconds(gpu, quantities) / quantities[_LATENCY]))


def bounded(log_ratio: Array, least: Array) -> Array:
    """Return log(expected / analytical), (C,), raised if the expected time would be near or below the minimum.

    Args:
        log_ratio: Predicted logarithm of the ratio.
        least: Result of `least_log_ratio`.
    """
    return np.logaddexp(_SHARPNESS * log_ratio, _SHARPNESS * least) / _SHARPNESS
