"""Compare a config's outputs with a reference, and hold a problem's tensors and expected outputs in GPU memory.

The error of an element is relative to the RMS of the whole output, or to the element itself if the element is
larger.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import cupy
import numpy as np
from cupy.cuda import Stream, runtime

from kernrec.kernel import Kernel
from kernrec.measure.device.interface import MeasurementFailure, OutputError, PreparedProblem
from kernrec.op import Problem
from kernrec.op.data import decode_elements, inputs, reference
from kernrec.profile.tensor_values import ELEMENTS, reference_tensors, sample_tensors
from kernrec.store.measurement import Outcome

_UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "tf32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_INNER_ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8, "tf32": 2.0 * 2.0**-11}
"""Relative rounding error of each term in a sum, keyed by dtype of the output. For tf32, the error is twice the unit
roundoff, because both factors of a term are rounded."""
_WEIGHT_ROUNDOFF = {"f8e4m3": 2.0**-4}
"""Unit roundoff of attention weights that are less precise than the output, keyed by dtype of the inputs."""
_SUM_ROUNDOFF = {"f8e4m3": 2.0**-14}
"""Unit roundoff of partial sums that are less precise than f32, keyed by dtype of the factors. The value for Hopper is
from arXiv 2412.19437, section 3.3.2."""
_LARGEST_DEVIATIONS = 8.0
"""Largest tolerated error, in standard deviations. The largest of 10^9 normally distributed errors is about 6."""
_OTHER_ROUNDINGS = 16
"""Number of roundings outside of sums, for example of an exponential or a root."""
_UNSTATED_TERMS = 4096.0
"""Number of terms per sum to assume if the spec of a kernel does not state FLOPs."""
_PIECE = 1 << 22


def tolerance(problem: Problem) -> float:
    """Return the largest error of an op's output that rounding can explain."""
    terms = max(_terms(problem), problem.sizes.get("columns", 1))  # A softmax has few FLOPs, but sums over all columns.
    output = problem.tensors[problem.definition.outputs[0]].dtype
    if output == problem.dtype:
        return rounding(output, terms)
    summed = _SUM_ROUNDOFF.get(problem.dtype, _UNIT_ROUNDOFF["f32"])
    weights = _of_terms(_WEIGHT_ROUNDOFF[problem.dtype]) if problem.op == "attention" else 0.0
    return _UNIT_ROUNDOFF[output] + weights + _of_sums(summed, terms)


def tolerances(problem: Problem, kernel: Kernel | None) -> dict[str, float]:
    """Return the largest error that counts as correct for each output, or 0 if the output must be exact.

    By default, integers must be equal, and floating-point numbers may differ by rounding errors. A kernel's spec can
    state another tolerance.

    Args:
        kernel: Kernel whose own spec defines the problem, or None if an op of kernrec defines it.
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
    """Return the largest error that rounding can explain in an output whose elements are sums of `terms` terms.

    The result is the sum of three relative errors, where u is the unit roundoff of the rounded values:

    - The output is rounded to its dtype. The error is at most u.
    - 16-bit kernels may round each term. The error is 0.42 u on average if errors and mantissas are uniform.
    - Partial sums are rounded to f32, or to f64 for f64 outputs. The standard deviation of the error of k terms with
      random signs is u sqrt(k / 2), relative to the standard deviation of the sum (Higham, Accuracy and Stability of
      Numerical Algorithms, section 4.2). Terms with equal signs have a smaller or equal relative error.
    """
    rounded = _UNIT_ROUNDOFF[dtype]
    inner = _of_terms(_INNER_ROUNDOFF.get(dtype, 0.0))
    return rounded + inner + _of_sums(min(rounded, _UNIT_ROUNDOFF["f32"]), terms)


def _of_terms(roundoff: float) -> float:
    return _LARGEST_DEVIATIONS * 0.42 * roundoff


def _of_sums(roundoff: float, terms: float) -> float:
    return float(_LARGEST_DEVIATIONS * roundoff * float(terms / 2.0 + _OTHER_ROUNDINGS) ** 0.5)


def values(stored: Any, dtype: str) -> Any:
    """Return the elements of an output as float64, or unchanged if they are integers."""
    return decode_elements(stored, dtype) if dtype in _UNIT_ROUNDOFF else stored


def compare(stored: Any, dtype: str, expected: Any, xp: ModuleType, allowed: float, reference: str) -> OutputError:
    """Return the error of one output.

    Args:
        stored: Output as a kernel stored it in memory, as a flat array of the module `xp`.
        expected: Expected elements, as returned by `values`. Elements that are NaN are not compared.
        xp: Array module, NumPy or CuPy.
        allowed: Largest error that counts as correct.
        reference: Description of the source of `expected`.
    """
    expected = expected.reshape(-1)
    # The whole output in float64 may not fit in memory.
    pieces = [slice(start, start + _PIECE) for start in range(0, expected.size, _PIECE)]
    finite = sum(int(xp.count_nonzero(xp.isfinite(expected[piece]))) for piece in pieces)
    squares = sum(float((_finite(expected[piece], xp) ** 2.0).sum()) for piece in pieces)
    rms = (squares / max(finite, 1)) ** 0.5
    largest, unwritten = 0.0, 0
    for piece in pieces:
        wanted, actual = expected[piece], values(stored[piece], dtype)
        unwritten += int(xp.count_nonzero(xp.isfinite(wanted) & ~xp.isfinite(actual)))
        # Compare integers directly, because float64 would round integers beyond 2^53.
        unequal = (actual != wanted) & (wanted == wanted)
        apart = xp.abs(_finite(actual, xp) - _finite(wanted, xp)) / xp.maximum(xp.abs(_finite(wanted, xp)), rms or 1.0)
        infinite = unequal & ~xp.isfinite(wanted)
        if int(xp.count_nonzero(unequal)):
            least = xp.maximum(apart, 2.0**-60) + infinite
            largest = max(largest, float((least * unequal).max()))
    return OutputError(largest, unwritten, allowed, reference)


def _finite(numbers: Any, xp: ModuleType) -> Any:
    return xp.where(xp.isfinite(numbers), numbers, 0).astype("float64")


ROTATION = 4
"""Minimum total size of all copies of a problem's tensors, as a multiple of the size of L2."""
_MOST_COPIES = 512
_NAN, _ODD = 0xFF, 0xA5
"""Bytes with which to fill outputs before a launch: 0xFF gives NaN in every float type, and 0xA5 an unlikely
integer."""


class ProblemBuffers:
    """Tensors of a problem in GPU memory. Launches use several copies in turn, so that L2 holds no old data."""

    def __init__(self, prepared: PreparedProblem, initial: Mapping[str, np.ndarray], l2_bytes: int) -> None:
        """Allocate copies of the tensors, and fill the copies with the `initial` contents from host memory."""
        tensors = prepared.problem.tensors
        first: dict[str, Any] = {name: cupy.asarray(array) for name, array in initial.items()}
        for name, tensor in tensors.items():
            if name not in first:
                first[name] = cupy.empty(tensor.bytes, dtype=cupy.uint8)
        footprint = sum(tensor.bytes for tensor in tensors.values())
        copies = min(_MOST_COPIES, max(1, -(-ROTATION * l2_bytes // footprint)))
        self.prepared = prepared
        self.initial = initial
        self.footprint_bytes = footprint
        """Size of one copy of all tensors, in bytes."""
        self.sets = [first] + [{name: array.copy() for name, array in first.items()} for _ in range(copies - 1)]
        """Copies of the problem's tensors, each keyed by tensor name. Only the first copy is reset and checked."""
        inouts = prepared.kernel.inouts if prepared.kernel else ()
        self.originals = {name: first[name].copy() for name in inouts}
        """Initial contents of each tensor that a launch both reads and changes."""
        self._results: Mapping[str, np.ndarray] = {}
        self._expected: dict[str, Any] = {}
        self._reference = ""

    def expect(self, results: Mapping[str, np.ndarray]) -> None:
        """Set the expected outputs, in the form that `values` returns."""
        self._results = results
        self._expected = {name: cupy.asarray(array) for name, array in results.items()}
        missing = sum(int(np.count_nonzero(array != array)) for array in results.values())
        self._reference = self.prepared.reference
        if missing:
            self._reference += f", but for {missing} elements that it does not write"

    def renew(self, stream: Stream) -> None:
        """Queue a reset of the tensors that a launch both reads and changes."""
        for name, original in self.originals.items():
            array = self.sets[0][name]
            runtime.memcpyAsync(
                array.data.ptr, original.data.ptr, original.nbytes, runtime.memcpyDeviceToDevice, stream.ptr
            )

    def restore(self) -> None:
        """Restore all tensors from the host, because a wrong config may have written anywhere."""
        for tensors in (*self.sets, self.originals):
            for name in tensors.keys() & self.initial.keys():
                tensors[name].set(self.initial[name])
        for name, array in self._results.items():
            self._expected[name].set(array)

    def reset(self, stream: Stream, scratch: Mapping[str, Any]) -> None:
        """Queue writes that prepare a launch. Outputs get values that reveal elements without a result."""
        blank = [(array, _NAN) for array in scratch.values()]
        for name, tensor in self.prepared.problem.tensors.items():
            if tensor.role == "output" and name not in self.originals:
                blank.append((self.sets[0][name], _NAN if tensor.dtype[0] in "bft" else _ODD))
        for array, byte in blank:
            runtime.memsetAsync(array.data.ptr, byte, array.nbytes, stream.ptr)
        self.renew(stream)

    def results(self) -> dict[str, Any]:
        """Return the outputs of a launch. Raise `MeasurementFailure` if every element of an output is NaN."""
        results = {}
        for name, stored in self._outputs().items():
            results[name] = values(stored, self.prepared.problem.tensors[name].dtype).get()
            if np.isnan(results[name]).all():
                raise MeasurementFailure(Outcome.INCORRECT, f"every element of {name} is NaN or was not written")
        return results

    def errors(self) -> OutputError:
        """Return the error of the worst output of a launch. Restore all tensors if this output is wrong."""
        allowed = tolerances(self.prepared.problem, self.prepared.kernel)
        dtypes = {name: tensor.dtype for name, tensor in self.prepared.problem.tensors.items()}
        errors = [
            compare(stored, dtypes[name], self._expected[name], cupy, allowed[name], self._reference)
            for name, stored in self._outputs().items()
        ]
        worst = max(errors, key=lambda e: (e.unwritten > 0, e.largest > e.tolerance, e.largest / (e.tolerance or 1.0)))
        if worst.unwritten or worst.largest > worst.tolerance:
            self.restore()
        return OutputError(worst.largest, sum(e.unwritten for e in errors), worst.tolerance, worst.reference)

    def _outputs(self) -> dict[str, Any]:
        tensors = self.prepared.problem.tensors
        names = [name for name, tensor in tensors.items() if tensor.role == "output"]
        return {name: self.sets[0][name].reshape(-1).view(ELEMENTS[tensors[name].dtype]) for name in names}


def initial_tensors(prepared: PreparedProblem) -> dict[str, np.ndarray]:
    """Return the tensor contents before a launch: inputs, and tensors that a launch both reads and changes."""
    if prepared.kernel is None:
        return inputs(prepared.problem, seed=0)
    tensors = sample_tensors(prepared.kernel, prepared.problem, prepared.folder)
    written = {*prepared.problem.definition.outputs} - prepared.kernel.inouts
    return {name: array for name, array in tensors.items() if name not in written}


def expected_outputs(prepared: PreparedProblem, initial: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of a correct launch, according to the op or the kernel's spec."""
    if prepared.kernel is None:
        return reference(prepared.problem, initial)
    tensors = prepared.problem.tensors
    stated = reference_tensors(prepared.kernel, prepared.problem, prepared.folder)
    return {name: values(array, tensors[name].dtype) for name, array in stated.items()}


def cached_outputs(
    folder: Path, prepared: PreparedProblem, make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the expected outputs from the cache in `folder`. If they are not cached, compute them with `make`."""
    path = folder / f"{sha256(f'{prepared.problem.key} {prepared.reference}'.encode()).hexdigest()[:16]}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as cached:
            return {name: cached[name] for name in cached.files}
    outputs = make()
    for earlier in folder.glob("*.npz"):
        earlier.unlink()
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, **outputs)  # type: ignore[arg-type]  # its stub takes keywords for flags
    partial.replace(path)
    return outputs
