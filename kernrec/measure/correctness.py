"""Correct before fast: how far a result is from the float64 reference, and how far rounding alone can take it.

An error is held against the RMS of the whole output: an element that happens to be near zero is not wrong because
its own relative error is large.
"""

from types import ModuleType
from typing import Any

from kernrec.measure.device import Errors
from kernrec.op import Problem
from kernrec.op.data import decode

_UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_LARGEST_OVER_RMS = 8.0
"""The largest of 10^9 normal values is 6 standard deviations out; a little more for results that are not normal."""

_PIECE = 1 << 24


def tolerance(problem: Problem) -> float:
    """The largest error, over the output's RMS, that rounding explains.

    The output is rounded once to its dtype, and inner results of kernels in 16 bits may be once more. Sums are kept in
    f32, in f64 for f64: after k terms of random sign, each partial sum rounded, the error's deviation is u sqrt(k / 2)
    of the result's, in whatever order they are added (Higham, Accuracy and Stability of Numerical Algorithms, section
    4.2); sums of one sign are off by no more, relatively. A factor of eight is left for what is not normal.
    """
    outputs = sum(tensor.elements for tensor in problem.tensors.values() if tensor.role == "output")
    terms = max(1.0, problem.flops / (2.0 * outputs))
    rounded = _UNIT_ROUNDOFF[problem.dtype]
    summed = min(rounded, _UNIT_ROUNDOFF["f32"])
    return _LARGEST_OVER_RMS * (2.0 * rounded + summed * (terms / 2.0) ** 0.5)


def compare(stored: Any, dtype: str, expected: Any, xp: ModuleType) -> Errors:
    """The errors of one output. stored: as a kernel left it in memory, flat; expected: float64, of as many elements.

    Both are arrays of the array module `xp` (numpy, cupy). Goes through them in pieces, for as float64 the output may
    not fit beside its reference.
    """
    expected = expected.reshape(-1)
    largest, squares, unwritten = 0.0, 0.0, 0
    for start in range(0, expected.size, _PIECE):
        wanted = expected[start : start + _PIECE]
        found = decode(stored[start : start + _PIECE], dtype)
        unwritten += int(xp.count_nonzero(~xp.isfinite(found)))
        largest = max(largest, float(xp.nan_to_num(xp.abs(found - wanted)).max()))
        squares += float((wanted * wanted).sum())
    rms = (squares / expected.size) ** 0.5
    return Errors(largest / rms if rms > 0.0 else largest, unwritten)
