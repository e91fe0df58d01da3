"""Correct before fast: how far a result is from what it should be, and how far rounding alone can take it.

The error of an element is held against the RMS of the whole output, or against the element itself where that is larger:
one that happens to be near zero is not wrong because its own relative error is large, and one that is far out (the peak
of a softmax) is not wrong because it is rounded on its own scale.
"""

from types import ModuleType
from typing import Any

from kernrec.kernel import Kernel
from kernrec.measure.device.interface import OutputError
from kernrec.op import Problem
from kernrec.op.data import decode_elements

_UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "tf32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_INNER_ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8, "tf32": 2.0 * 2.0**-11}
"""Of what sums are made of: weights in 16 bits, both factors of a product in TF32."""
_LARGEST_DEVIATIONS = 8.0
"""The largest of 10^9 normal errors is 6 standard deviations out; a little more for errors that are not normal."""
_OTHER_ROUNDINGS = 16
"""Of what is not a sum: an exponential, a root, a mean taken away."""
_UNSTATED_TERMS = 4096.0
"""Of the sums of a kernel whose spec states no FLOPs."""
_PIECE = 1 << 22


def tolerance(problem: Problem) -> float:
    """The largest error of an op's result that rounding explains."""
    terms = max(_terms(problem), problem.sizes.get("columns", 1))  # what normalises sums along columns
    return rounding(problem.dtype, terms)


def tolerances(problem: Problem, kernel: Kernel | None) -> dict[str, float]:
    """The largest error of each output that is not wrong; 0: it has to be equal.

    kernel: the one whose spec declares the problem. What the spec says counts; else whole numbers have to be equal, and
    others may differ by rounding, of both sides where the other side is the output of another config.
    """
    outputs = [name for name, tensor in problem.tensors.items() if tensor.role == "output"]
    if kernel is None:
        return dict.fromkeys(outputs, tolerance(problem))
    if kernel.tolerance is not None:
        return dict.fromkeys(outputs, kernel.tolerance)
    sides = 1.0 if kernel.references else 2.0
    terms = _terms(problem) or _UNSTATED_TERMS
    types = {name: problem.tensors[name].dtype for name in outputs}
    return {name: sides * rounding(of, terms) if of in _UNIT_ROUNDOFF else 0.0 for name, of in types.items()}


def _terms(problem: Problem) -> float:
    outputs = sum(tensor.elements for tensor in problem.tensors.values() if tensor.role == "output")
    return problem.flops / (2.0 * max(outputs, 1))


def rounding(dtype: str, terms: float) -> float:
    """The largest error of sums of so many terms that rounding explains.

    The output is rounded to its dtype, by at most its unit roundoff u. Inner results of kernels in 16 bits (the weights
    of attention) may be rounded too, each by 0.42 u on average over a uniform error and mantissa; in a sum of them
    these errors add up as the terms do. Sums are kept in f32, in f64 for f64: after k terms of random sign, each
    partial sum rounded, the error's deviation is u sqrt(k / 2) of the result's, in whatever order they are added
    (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2); sums of one sign are off by no more,
    relatively.
    """
    rounded = _UNIT_ROUNDOFF[dtype]
    summed = min(rounded, _UNIT_ROUNDOFF["f32"])
    inner = 0.42 * _INNER_ROUNDOFF.get(dtype, 0.0)
    return rounded + _LARGEST_DEVIATIONS * (inner + summed * (terms / 2.0 + _OTHER_ROUNDINGS) ** 0.5)


def values(stored: Any, dtype: str) -> Any:
    """What an output holds, as `compare` takes what is expected: float64, or the whole numbers that they are."""
    return decode_elements(stored, dtype) if dtype in _UNIT_ROUNDOFF else stored


def compare(stored: Any, dtype: str, expected: Any, xp: ModuleType, allowed: float, reference: str) -> OutputError:
    """The errors of one output. stored: as a kernel left it in memory, flat; expected: as many elements, by `values`.

    Both are arrays of the array module `xp` (numpy, cupy). An element that is expected to be NaN is not compared: it is
    one that the config whose output is expected did not write. Goes through the output in pieces, for as float64 it may
    not fit beside its reference.
    """
    expected = expected.reshape(-1)
    pieces = [slice(start, start + _PIECE) for start in range(0, expected.size, _PIECE)]
    known = sum(int(xp.count_nonzero(xp.isfinite(expected[piece]))) for piece in pieces)
    squares = sum(float((_finite(expected[piece], xp) ** 2.0).sum()) for piece in pieces)
    rms = (squares / max(known, 1)) ** 0.5
    largest, unwritten = 0.0, 0
    for piece in pieces:
        wanted, found = expected[piece], values(stored[piece], dtype)
        unwritten += int(xp.count_nonzero(xp.isfinite(wanted) & ~xp.isfinite(found)))
        unequal = (found != wanted) & (wanted == wanted)  # of whole numbers beyond 2^53 too, as float64 would not tell
        apart = xp.abs(_finite(found, xp) - _finite(wanted, xp)) / xp.maximum(xp.abs(_finite(wanted, xp)), rms or 1.0)
        infinite = unequal & ~xp.isfinite(wanted)
        if int(xp.count_nonzero(unequal)):
            least = xp.maximum(apart, 2.0**-60) + infinite
            largest = max(largest, float((least * unequal).max()))
    return OutputError(largest, unwritten, allowed, reference)


def _finite(numbers: Any, xp: ModuleType) -> Any:
    """As float64, with zeros in place of what is no number."""
    return xp.where(xp.isfinite(numbers), numbers, 0).astype("float64")
