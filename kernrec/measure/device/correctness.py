"""Compare results with a reference: compute an output's error, and the largest error that rounding explains.

An element's error is relative to the RMS of the whole output, or to the element itself if the element is larger. So an
element near zero may have a large relative error of its own. A very large element (the peak of a softmax) may be
rounded at its own scale.
"""

from types import ModuleType
from typing import Any

from kernrec.kernel import Kernel
from kernrec.measure.device.interface import OutputError
from kernrec.op import Problem
from kernrec.op.data import decode_elements

_UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "tf32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_INNER_ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8, "tf32": 2.0 * 2.0**-11}
"""Unit roundoff of the terms of sums: of 16-bit weights, or of both factors of a product in TF32."""
_WEIGHT_ROUNDOFF = {"f8e4m3": 2.0**-4}
"""Unit roundoff of attention's weights, if it differs from the output's."""
_SUM_ROUNDOFF = {"f8e4m3": 2.0**-14}
"""Unit roundoff of partial sums by the factors' dtype, if it differs from f32's: Hopper's tensor cores keep
some 14 bits of sums of 8-bit products (DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3.3.2)."""
_LARGEST_DEVIATIONS = 8.0
"""Largest error in standard deviations: 6 for 10^9 normal errors, and a margin for other distributions."""
_OTHER_ROUNDINGS = 16
"""Number of roundings outside of sums: an exponential, a root, a subtracted mean."""
_UNSTATED_TERMS = 4096.0
"""Assumed terms per sum if a kernel's spec does not state FLOPs."""
_PIECE = 1 << 22


def tolerance(problem: Problem) -> float:
    """Return the largest error of an op's result that rounding explains."""
    terms = max(_terms(problem), problem.sizes.get("columns", 1))  # Ops that normalize also sum along columns.
    output = problem.tensors[problem.definition.outputs[0]].dtype
    if output == problem.dtype:
        return rounding(output, terms)
    summed = _SUM_ROUNDOFF.get(problem.dtype, _UNIT_ROUNDOFF["f32"])
    weights = _of_terms(_WEIGHT_ROUNDOFF[problem.dtype]) if problem.op == "attention" else 0.0
    return _UNIT_ROUNDOFF[output] + weights + _of_sums(summed, terms)


def tolerances(problem: Problem, kernel: Kernel | None) -> dict[str, float]:
    """Return the largest error of each output that counts as correct; 0 if the output must be equal.

    Args:
        problem: Problem with the outputs.
        kernel: Kernel whose spec declares the problem; None for the problem of an op. A tolerance in the spec is used;
            otherwise whole numbers must be equal, and other numbers may differ by rounding, on both sides if the
            expected output is that of another config.
    """
    outputs = [name for name, tensor in problem.tensors.items() if tensor.role == "output"]
    if kernel is None:
        return dict.fromkeys(outputs, tolerance(problem))
    if kernel.tolerance is not None:
        return dict.fromkeys(outputs, kernel.tolerance)
    sides = 1.0 if kernel.references else 2.0
    terms = _terms(problem) or _UNSTATED_TERMS
    types = {name: problem.tensors[name].dtype for name in outputs}
    return {name: sides * rounding(dtype, terms) if dtype in _UNIT_ROUNDOFF else 0.0 for name, dtype in types.items()}


def _terms(problem: Problem) -> float:
    outputs = sum(tensor.elements for tensor in problem.tensors.values() if tensor.role == "output")
    return problem.flops / (2.0 * max(outputs, 1))


def rounding(dtype: str, terms: float) -> float:
    """Return the largest error of sums of `terms` terms that rounding explains.

    The output is rounded to its dtype, by at most its unit roundoff u. Inner results of kernels in 16 bits (the weights
    of attention) may be rounded too, each by 0.42 u on average over a uniform error and mantissa; in a sum of them
    these errors add up as the terms do. Sums are kept in f32, or in f64 for f64: after k terms of random sign, with
    each partial sum rounded, the standard deviation of the error is u sqrt(k / 2) of the result's, in any order of
    addition (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2); the relative error of sums of one
    sign is not larger.
    """
    rounded = _UNIT_ROUNDOFF[dtype]
    inner = _of_terms(_INNER_ROUNDOFF.get(dtype, 0.0))
    return rounded + inner + _of_sums(min(rounded, _UNIT_ROUNDOFF["f32"]), terms)


def _of_terms(roundoff: float) -> float:
    return _LARGEST_DEVIATIONS * 0.42 * roundoff


def _of_sums(roundoff: float, terms: float) -> float:
    return float(_LARGEST_DEVIATIONS * roundoff * float(terms / 2.0 + _OTHER_ROUNDINGS) ** 0.5)


def values(stored: Any, dtype: str) -> Any:
    """Return the values of an output as `compare` expects its reference: float64, or whole numbers unchanged."""
    return decode_elements(stored, dtype) if dtype in _UNIT_ROUNDOFF else stored


def compare(stored: Any, dtype: str, expected: Any, xp: ModuleType, allowed: float, reference: str) -> OutputError:
    """Return the error of one output, compared in pieces, because as float64 it may not fit in memory beside its
    reference.

    Args:
        stored: Output as a kernel left it in memory, flat; an array of the module `xp`.
        dtype: Data type of the output.
        expected: As many elements, in the form of `values`. NaN marks an element that is not compared, because the
            config whose output is expected did not write it.
        xp: Array module, NumPy or CuPy.
        allowed: Largest error that counts as correct.
        reference: Source of `expected`, as rows state it.
    """
    expected = expected.reshape(-1)
    pieces = [slice(start, start + _PIECE) for start in range(0, expected.size, _PIECE)]
    finite = sum(int(xp.count_nonzero(xp.isfinite(expected[piece]))) for piece in pieces)
    squares = sum(float((_finite(expected[piece], xp) ** 2.0).sum()) for piece in pieces)
    rms = (squares / max(finite, 1)) ** 0.5
    largest, unwritten = 0.0, 0
    for piece in pieces:
        wanted, actual = expected[piece], values(stored[piece], dtype)
        unwritten += int(xp.count_nonzero(xp.isfinite(wanted) & ~xp.isfinite(actual)))
        unequal = (actual != wanted) & (wanted == wanted)  # exact also for whole numbers beyond 2^53, unlike float64
        apart = xp.abs(_finite(actual, xp) - _finite(wanted, xp)) / xp.maximum(xp.abs(_finite(wanted, xp)), rms or 1.0)
        infinite = unequal & ~xp.isfinite(wanted)
        if int(xp.count_nonzero(unequal)):
            least = xp.maximum(apart, 2.0**-60) + infinite
            largest = max(largest, float((least * unequal).max()))
    return OutputError(largest, unwritten, allowed, reference)


def _finite(numbers: Any, xp: ModuleType) -> Any:
    return xp.where(xp.isfinite(numbers), numbers, 0).astype("float64")
