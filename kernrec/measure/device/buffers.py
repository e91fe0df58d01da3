"""Hold a problem in a CUDA device's memory: rotating sets of its tensors, and the expected outputs."""

from collections.abc import Callable, Mapping
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
from kernrec.store.measurement import Outcome

ROTATION = 4
"""Minimum total size of all rotating buffers, as a multiple of L2."""
_MOST_COPIES = 512
_NAN, _ODD = 0xFF, 0xA5
"""Byte that fills unwritten outputs: 0xFF gives a NaN in f16, bf16, f32 and f64; 0xA5 gives an unlikely integer."""


class ProblemBuffers:
    """Tensors of a prepared problem, in as many copies as rotation needs."""

    def __init__(self, prepared: PreparedProblem, initial: Mapping[str, np.ndarray], l2_bytes: int) -> None:
        """Allocate the tensors; `initial` has their contents on the host (`initial_tensors`)."""
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
        """Bytes of one set."""
        self.sets = [first] + [{name: array.copy() for name, array in first.items()} for _ in range(copies - 1)]
        """Rotating sets of all tensors by name; results are checked in the first set."""
        inouts = prepared.kernel.inouts if prepared.kernel else ()
        self.originals = {name: first[name].copy() for name in inouts}
        """Initial contents of the tensors that a launch both reads and changes."""
        self._results: Mapping[str, np.ndarray] = {}
        self._expected: dict[str, Any] = {}
        self._reference = ""

    def expect(self, results: Mapping[str, np.ndarray]) -> None:
        """Set the expected outputs, in the form of `correctness.values`."""
        self._results = results
        self._expected = {name: cupy.asarray(array) for name, array in results.items()}
        missing = sum(int(np.count_nonzero(array != array)) for array in results.values())
        self._reference = self.prepared.reference
        if missing:
            self._reference += f", but for {missing} elements that it does not write"

    def renew(self, stream: Stream) -> None:
        """Queue copies that restore the first set's tensors that launches both read and change."""
        for name, original in self.originals.items():
            array = self.sets[0][name]
            runtime.memcpyAsync(
                array.data.ptr, original.data.ptr, original.nbytes, runtime.memcpyDeviceToDevice, stream.ptr
            )

    def restore(self) -> None:
        """Restore all tensors from the host, because a config with wrong results may have written anywhere."""
        for tensors in (*self.sets, self.originals):
            for name in tensors.keys() & self.initial.keys():
                tensors[name].set(self.initial[name])
        for name, array in self._results.items():
            self._expected[name].set(array)

    def reset(self, stream: Stream, scratch: Mapping[str, Any]) -> None:
        """Queue the reset of the first set and the workspaces: unwritten outputs, original inputs."""
        blank = [(array, _NAN) for array in scratch.values()]
        for name, tensor in self.prepared.problem.tensors.items():
            if tensor.role == "output" and name not in self.originals:
                blank.append((self.sets[0][name], _NAN if tensor.dtype[0] in "bft" else _ODD))
        for array, byte in blank:
            runtime.memsetAsync(array.data.ptr, byte, array.nbytes, stream.ptr)
        self.renew(stream)

    def results(self) -> dict[str, Any]:
        """Return the outputs of the first set in the form of `expect`; raise `MeasurementFailure` if nothing was
        written."""
        results = {}
        for name, stored in self._outputs().items():
            results[name] = values(stored, self.prepared.problem.tensors[name].dtype).get()
            if np.isnan(results[name]).all():
                raise MeasurementFailure(Outcome.INCORRECT, f"no element of {name} was written, or is a number")
        return results

    def errors(self) -> OutputError:
        """Return the error of the worst output of the first set. After a wrong result, restore all tensors."""
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
    """Return the contents of memory before a launch: inputs, and tensors that a launch both reads and changes."""
    if prepared.kernel is None:
        return inputs(prepared.problem, seed=0)
    tensors = sample_tensors(prepared.kernel, prepared.problem, prepared.folder)
    written = {*prepared.problem.definition.outputs} - prepared.kernel.inouts
    return {name: array for name, array in tensors.items() if name not in written}


def expected_outputs(prepared: PreparedProblem, initial: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the correct contents of the outputs after a launch, as the op or the spec defines them."""
    if prepared.kernel is None:
        return reference(prepared.problem, initial)
    tensors = prepared.problem.tensors
    stated = reference_tensors(prepared.kernel, prepared.problem, prepared.folder)
    return {name: values(array, tensors[name].dtype) for name, array in stated.items()}


def cached_outputs(
    folder: Path, prepared: PreparedProblem, make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the result of `make`, cached in a folder: `make` is slow, and every new worker needs the result."""
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
