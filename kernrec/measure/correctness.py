"""Correct before fast: how far a result is from the float64 reference, and how far rounding alone can take it.

The error of an element is held against the RMS of the whole output, or against the element itself where that is larger:
one that happens to be near zero is not wrong because its own relative error is large, and one that is far out (the peak
of a softmax) is not wrong because it is rounded on its own scale.
"""

from types import ModuleType
from typing import Any

from kernrec.measure.device import Errors
from kernrec.op import Problem
from kernrec.op.data import decode

_UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_LARGEST_DEVIATIONS = 8.0
"""The largest of 10^9 normal errors is 6 standard deviations out; a little more for errors that are not normal."""
_OTHER_ROUNDINGS = 16
"""Of what is not a sum: an exponential, a root, a mean taken away."""
_PIECE = 1 << 24


def tolerance(problem: Problem) -> float:
    """The largest error that rounding explains.

    The output is rounded to its dtype, by at most its unit roundoff u. Inner results of kernels in 16 bits (the weights
    of attention) may be rounded too, each by 0.42 u on average over a uniform error and mantissa; in a sum of them
    these errors add up as the terms do. Sums are kept in f32, in f64 for f64: after k terms of random sign, each
    partial sum rounded, the error's deviation is u sqrt(k / 2) of the result's, in whatever order they are added
    (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2); sums of one sign are off by no more,
    relatively.
    """
    outputs = sum(tensor.elements for tensor in problem.tensors.values() if tensor.role == "output")
    terms = max(problem.flops / (2.0 * outputs), problem.sizes.get("columns", 1))  # what normalises sums along columns
    rounded = _UNIT_ROUNDOFF[problem.dtype]
    summed = min(rounded, _UNIT_ROUNDOFF["f32"])
    inner = 0.42 * rounded if problem.dtype in ("f16", "bf16") else 0.0
    return rounded + _LARGEST_DEVIATIONS * (inner + summed * (terms / 2.0 + _OTHER_ROUNDINGS) ** 0.5)


def compare(stored: Any, dtype: str, expected: Any, xp: ModuleType) -> Errors:
    """The errors of one output. stored: as a kernel left it in memory, flat; expected: float64, of as many elements.

    Both are arrays of the array module `xp` (numpy, cupy). Goes through them in pieces, for as float64 the output may
    not fit beside its reference.
    """
    expected = expected.reshape(-1)
    pieces = [slice(start, start + _PIECE) for start in range(0, expected.size, _PIECE)]
    rms = (sum(float((expected[piece] ** 2).sum()) for piece in pieces) / expected.size) ** 0.5
    largest, unwritten = 0.0, 0
    for piece in pieces:
        wanted, found = expected[piece], decode(stored[piece], dtype)
        unwritten += int(xp.count_nonzero(~xp.isfinite(found)))
        scale = xp.maximum(xp.abs(wanted), rms or 1.0)
        largest = max(largest, float(xp.nan_to_num(xp.abs(found - wanted) / scale).max()))
    return Errors(largest, unwritten)
