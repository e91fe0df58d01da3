"""A problem in the memory of a CUDA device: rotating sets of its tensors, and what its outputs have to be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from cupy.cuda import Stream, runtime

from kernrec.measure.device.correctness import compare, tolerances, values
from kernrec.measure.device.interface import MeasurementFailure, OutputError, PreparedProblem
from kernrec.op.data import inputs, reference
from kernrec.profile.tensor_values import ELEMENTS, reference_tensors, sample_tensors

ROTATION = 4
"""Rotating buffers together are at least so many times L2."""
_MOST_COPIES = 512
_NAN, _ODD = 0xFF, 0xA5
"""A float all of whose bytes are 0xFF is a NaN, in f16, bf16, f32 and f64; whole numbers of 0xA5 are unlikely ones."""


@dataclass
class ProblemBuffers:
    """The tensors of a case. sets: each has all of them, by name; the first is the one that results are checked in.

    originals: the tensors that a launch finds filled and changes, as they were. filled: what `initial_tensors` gave.
    """

    case: PreparedProblem
    sets: list[dict[str, Any]]
    originals: dict[str, Any]
    filled: Mapping[str, np.ndarray]
    _results: Mapping[str, np.ndarray] = field(default_factory=dict)
    _expected: dict[str, Any] = field(default_factory=dict)
    _reference: str = ""

    @classmethod
    def of(cls, case: PreparedProblem, filled: Mapping[str, np.ndarray], l2_bytes: int) -> "ProblemBuffers":
        """The memory of a case, with what is its initial contents in it."""
        tensors = case.problem.tensors
        first: dict[str, Any] = {name: cupy.asarray(array) for name, array in filled.items()}
        for name, tensor in tensors.items():
            if name not in first:
                first[name] = cupy.empty(tensor.bytes, dtype=cupy.uint8)
        footprint = sum(tensor.bytes for tensor in tensors.values())
        copies = min(_MOST_COPIES, max(1, -(-ROTATION * l2_bytes // footprint)))
        sets = [first] + [{name: array.copy() for name, array in first.items()} for _ in range(copies - 1)]
        inouts = case.kernel.inouts if case.kernel else ()
        return cls(case, sets, {name: first[name].copy() for name in inouts}, filled)

    @property
    def footprint_bytes(self) -> int:
        """Of one set."""
        return sum(tensor.bytes for tensor in self.case.problem.tensors.values())

    def expect(self, results: Mapping[str, np.ndarray]) -> None:
        """From now on each output has to be this, as `correctness.values` gives it."""
        self._results = results
        self._expected = {name: cupy.asarray(array) for name, array in results.items()}
        missing = sum(int(np.count_nonzero(array != array)) for array in results.values())
        self._reference = self.case.reference
        if missing:
            self._reference += f", but for {missing} elements that it does not write"

    def renew(self, stream: Stream) -> None:
        """Queue the making anew, in the first set, of what launches change."""
        for name, original in self.originals.items():
            array = self.sets[0][name]
            runtime.memcpyAsync(
                array.data.ptr, original.data.ptr, original.nbytes, runtime.memcpyDeviceToDevice, stream.ptr
            )

    def restore(self) -> None:
        """Make everything anew from what the host has: who computes something else may have written anywhere."""
        for tensors in (*self.sets, self.originals):
            for name in tensors.keys() & self.filled.keys():
                tensors[name].set(self.filled[name])
        for name, array in self._results.items():
            self._expected[name].set(array)

    def forget(self, stream: Stream, scratch: Mapping[str, Any]) -> None:
        """Queue the making of the first set, and of workspaces, as a launch that is checked has to find them."""
        blank = [(array, _NAN) for array in scratch.values()]
        for name, tensor in self.case.problem.tensors.items():
            if tensor.role == "output" and name not in self.originals:
                blank.append((self.sets[0][name], _NAN if tensor.dtype[0] in "bft" else _ODD))
        for array, byte in blank:
            runtime.memsetAsync(array.data.ptr, byte, array.nbytes, stream.ptr)
        self.renew(stream)

    def results(self) -> dict[str, Any]:
        """The outputs of the first set, as `expect` takes them. Raises `MeasurementFailure` if nothing was written."""
        found = {}
        for name, stored in self._outputs().items():
            dtype = self.case.problem.tensors[name].dtype
            found[name] = values(stored, dtype).get()
            if np.isnan(found[name]).all():
                raise MeasurementFailure("incorrect", f"no element of {name} was written, or is a number")
        return found

    def errors(self) -> OutputError:
        """How far the outputs of the first set are from what is expected; of several the one that is furthest.

        After a wrong result everything is restored.
        """
        allowed = tolerances(self.case.problem, self.case.kernel)
        dtypes = {name: tensor.dtype for name, tensor in self.case.problem.tensors.items()}
        found = [
            compare(stored, dtypes[name], self._expected[name], cupy, allowed[name], self._reference)
            for name, stored in self._outputs().items()
        ]
        worst = max(found, key=lambda e: (e.unwritten > 0, e.largest > e.tolerance, e.largest / (e.tolerance or 1.0)))
        if worst.unwritten or worst.largest > worst.tolerance:
            self.restore()
        return OutputError(worst.largest, sum(e.unwritten for e in found), worst.tolerance, worst.reference)

    def _outputs(self) -> dict[str, Any]:
        """The outputs of the first set, flat, as elements of their type."""
        tensors = self.case.problem.tensors
        names = [name for name, tensor in tensors.items() if tensor.role == "output"]
        return {name: self.sets[0][name].reshape(-1).view(ELEMENTS[tensors[name].dtype]) for name in names}


def initial_tensors(case: PreparedProblem) -> dict[str, np.ndarray]:
    """What lies in memory before a launch: the inputs, and what a launch changes."""
    if case.kernel is None:
        return inputs(case.problem, seed=0)
    filled = sample_tensors(case.kernel, case.problem, case.folder)
    written = {*case.problem.definition.outputs} - case.kernel.inouts
    return {name: array for name, array in filled.items() if name not in written}


def expected_outputs(case: PreparedProblem, filled: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a launch has to leave in the outputs, by the op or by the spec."""
    if case.kernel is None:
        return reference(case.problem, filled)
    tensors = case.problem.tensors
    found = reference_tensors(case.kernel, case.problem, case.folder)
    return {name: values(array, tensors[name].dtype) for name, array in found.items()}


def cached_outputs(
    folder: Path, case: PreparedProblem, make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """What `make` gives, kept in a file of a folder: it takes long, and the process that needs it may be replaced."""
    path = folder / f"{sha256(f'{case.problem.key} {case.reference}'.encode()).hexdigest()[:16]}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as known:
            return {name: known[name] for name in known.files}
    found = make()
    for earlier in folder.glob("*.npz"):
        earlier.unlink()
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, **found)  # type: ignore[arg-type]  # its stub takes keywords for flags
    partial.replace(path)
    return found
