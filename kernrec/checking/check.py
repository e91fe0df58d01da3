"""Check a kernel: run it in the emulator, in a separate process, and compare its outputs with a reference."""

import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.checking.child_process import Ended, Limits, load_arrays, run_apart, save_arrays
from kernrec.compile.nvrtc import check_files
from kernrec.errors import UsageError, unknown
from kernrec.gpu import find_gpu
from kernrec.measure.device.correctness import compare, rounding
from kernrec.profile.launch_arguments import BufferDescription, read_arguments, read_description
from kernrec.ptx import BufferPlace, TensorMap
from kernrec.store.measurement import Outcome
from kernrec.util.light_dataclass import dataclass

_PTX = re.compile(r"^\s*\.version\b", re.MULTILINE)
_MOST_BLOCKS = 1 << 20


@dataclass(frozen=True)
class SourceLaunch:
    """A kernel source, and the launch of one of its kernels."""

    source: str
    """Text of the source in CUDA C++ or PTX."""
    arguments: Mapping[str, np.ndarray | np.generic | int]
    """Arguments by name, in the order of the kernel's parameters. An argument is a C-contiguous array or a number."""
    grid: Sequence[int]
    """Number of thread blocks along one to three axes."""
    block: Sequence[int]
    """Threads per block along one to three axes."""
    gpu: str = "a100"
    """Name of the GPU for which the source is compiled."""
    entry: str | None = None
    """Name of the kernel, or None to select the only kernel of the source."""
    shared_bytes: int = 0
    """Dynamic shared memory per block in bytes."""
    defines: Mapping[str, str] = field(default_factory=dict)
    """Values of macros for compiling CUDA C++, keyed by macro."""

    @property
    def file(self) -> str:
        return file_of(self.source)

    def check(self, limits: Limits) -> None:
        """Raise `UsageError` if sizes are too large, the launch is impossible, or the source opens files."""
        check_source(self.source, self.file, limits)
        find_gpu(self.gpu)
        for name, extents in (("grid", self.grid), ("block", self.block)):
            if not 1 <= len(extents) <= 3 or not all(isinstance(n, int) and 0 < n <= _MOST_BLOCKS for n in extents):
                raise UsageError(f"{name} is {list(extents)!r:.60}; expected one to three positive whole numbers")
        if not 0 <= self.shared_bytes <= 256 << 10:
            raise UsageError(f"shared memory is {self.shared_bytes} bytes; expected 0 to {256 << 10}")
        for name, value in self.defines.items():
            if not (name.isidentifier() and name.isascii() and re.fullmatch(r"[\w.+-]{0,80}", value, re.ASCII)):
                raise UsageError(f"define {name!r:.40}: expected NAME=VALUE, with a number or a name as the value")
        total = sum(value.nbytes for value in self.arguments.values() if isinstance(value, np.ndarray))
        if total > limits.tensor_bytes:
            raise UsageError(f"the arrays have {total} bytes together; at most {limits.tensor_bytes} are accepted")


def file_of(source: str) -> str:
    """Return the file name of a source in messages: `kernel.ptx` for PTX, otherwise `kernel.cu`."""
    return "kernel.ptx" if _PTX.search(source) else "kernel.cu"


def check_source(source: str, file: str, limits: Limits) -> None:
    """Raise `UsageError` if a source is empty, is too large or includes files that are not CUDA headers."""
    if not source.strip():
        raise UsageError("the source is empty; expected CUDA C++ or PTX")
    if len(source.encode(errors="replace")) > limits.source_bytes:
        raise UsageError(f"the source is larger than {limits.source_bytes} bytes")
    if "\0" in source:
        raise UsageError("the source is not text: it contains a NUL byte")
    check_files(source, file)


def check_descriptions(descriptions: Sequence[str], limits: Limits) -> None:
    """Raise `UsageError` if descriptions of arguments name files, or if the arrays would be too large."""
    total = 0
    for text in descriptions:
        described = read_description(text)
        if isinstance(described, BufferDescription):
            if described.path is not None:
                raise UsageError(
                    f"argument {text!r:.60} names a file, and files are not read here; give a type and a size, such as"
                    " x=f32[4096]"
                )
            total += 8 * described.elements
    if total > limits.tensor_bytes:
        raise UsageError(f"the arrays would have {total} bytes in total; at most {limits.tensor_bytes} are accepted")


def described_arguments(descriptions: Sequence[str], limits: Limits) -> dict[str, Any]:
    """Create kernel arguments from descriptions such as `x=f32[4096]`, keyed by name or position.

    Raises:
        UsageError: A description cannot be read, names a file, is a texture or a tensor map, or is too large.
    """
    check_descriptions(descriptions, limits)
    read = read_arguments(descriptions)
    if read.images or any(isinstance(argument, TensorMap) for argument in read.order):
        raise UsageError("textures and tensor maps cannot be checked here; use `kernrec check FILE.cu`")
    if any(isinstance(argument, BufferPlace | bytes) for argument in read.order):
        raise UsageError("structures and pointers into a buffer cannot be checked here; use `kernrec check FILE.cu`")
    named = {a if isinstance(a, str) else f"argument{n}": a for n, a in enumerate(read.order)}
    return {name: read.buffers[name] if isinstance(value, str) else value for name, value in named.items()}


Reference = Mapping[str, Any] | Callable[..., Any]

BUDGET = 20_000_000
"""PTX instructions that a batch of thread blocks may execute. A kernel that needs more counts as an endless loop."""
_ASSUMED_TERMS = 4096.0
"""Number of terms that each output element is assumed to sum up, for the default tolerance."""


@dataclass(frozen=True)
class OutputCheck:
    """Comparison of a kernel's output with its expected values."""

    error: float
    """Largest error of an element, divided by the element's value or the output's RMS, whichever is larger."""
    tolerance: float
    """Largest error that counts as correct."""
    not_numbers: int
    """Number of NaN or infinite elements with a finite expected value."""
    where: tuple[int, ...]
    """Index of the element with the largest error."""
    actual: float
    """Computed value of the element with the largest error."""
    expected: float

    @property
    def correct(self) -> bool:
        return self.error <= self.tolerance and not self.not_numbers


@dataclass(frozen=True)
class CheckResult:
    """Result of checking a kernel."""

    outcome: Outcome
    """`ok`, `incorrect` (wrong result), `compile`, `timeout` or `crash` (out-of-bounds or misaligned access, data race
    in shared memory, deadlock, endless loop, unknown instruction, or lack of memory)."""
    message: str
    """Description of the error in one line. Empty if the outcome is `ok`."""
    outputs: Mapping[str, OutputCheck]
    counts: Mapping[str, int]
    """Numbers of emulated events, as in `kernrec check`. Empty if the kernel did not finish."""
    registers: int | None
    """Registers per thread, or None if the source is PTX."""
    spill_bytes: int | None
    """Bytes that each thread stores and loads because of spilled registers, or None if the source is PTX."""
    arrays: Mapping[str, np.ndarray]
    """Contents of all arrays after the launch, keyed by name."""

    @property
    def correct(self) -> bool:
        return self.outcome is Outcome.OK

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values for JSON, without the arrays."""
        outputs = {
            name: {
                "correct": output.correct,
                "largest_error": _plain(output.error),
                "tolerance": output.tolerance,
                "not_numbers": output.not_numbers,
                "where": list(output.where),
                "actual": _plain(output.actual),
                "expected": _plain(output.expected),
            }
            for name, output in self.outputs.items()
        }
        return {
            "correct": self.correct,
            "outcome": self.outcome,
            "message": self.message,
            "outputs": outputs,
            "registers": self.registers,
            "spill_bytes": self.spill_bytes,
            "counts": dict(self.counts),
        }


def check(
    launch: SourceLaunch, reference: Reference | None, tolerance: float | None = None, limits: Limits | None = None
) -> CheckResult:
    """Compile a source, emulate one launch, and compare the outputs with their expected values.

    Everything runs in a separate process, except a reference that is a Python function.

    Args:
        launch: Source, arguments and launch. The arrays in it do not change.
        reference: Expected outputs, keyed by name: arrays, or NumPy expressions over the arguments. A function may also
            compute them: it receives the arguments by name, and returns the arrays by name. None compares nothing.
        tolerance: Largest error that counts as correct. The default allows rounding errors of floats and no errors of
            integers.
        limits: Limits of time, memory and sizes.

    Raises:
        UsageError: The arguments, the launch or the reference cannot be used.
        KernrecError: No compiler is installed.
    """
    limits = limits or Limits()
    launch.check(limits)
    if tolerance is not None and not 0 <= tolerance < np.inf:
        raise UsageError(f"tolerance is {tolerance}; expected a number of at least 0")
    copies = {name: _array(value) for name, value in launch.arguments.items()}
    if callable(reference):
        reference = reference({name: value.copy() for name, value in copies.items()})
    if reference is not None and not isinstance(reference, Mapping):
        kind = type(reference).__name__
        raise UsageError(f"the reference is of type {kind}; expected outputs by name, such as {{'y': 'alpha * x'}}")
    expected: dict[str, Any] = dict(reference or {})
    for name in expected:
        if name not in copies or not copies[name].ndim:
            choices = [array for array, value in copies.items() if value.ndim]
            raise unknown("array among the expected outputs:", name, choices)
    texts = {name: value for name, value in expected.items() if isinstance(value, str)}
    with tempfile.TemporaryDirectory(prefix="kernrec-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        save_arrays(folder / "arguments.npz", copies)
        ended = run_apart("check", _request(launch, texts), folder, limits)
        if ended.outcome is not Outcome.OK:
            return CheckResult(ended.outcome, ended.message, {}, {}, None, None, {})
        arrays = load_arrays(folder / "outputs.npz")
        expected |= load_arrays(folder / "expected.npz")
    return _compared(ended, arrays, expected, tolerance)


def _array(value: Any) -> np.ndarray:
    """Convert an argument to an array. A Python `float` becomes a C `float`."""
    array = np.array(value, dtype=np.float32 if type(value) is float else None, order="C")
    if array.dtype.kind not in "fiu":
        raise UsageError(f"an argument is an array of {array.dtype}; expected numbers")
    return array


def _request(launch: SourceLaunch, texts: Mapping[str, str]) -> dict[str, Any]:
    return {
        **{name: value for name, value in vars(launch).items() if name not in ("arguments", "gpu")},
        "file": launch.file,
        "order": list(launch.arguments),
        "whole": {name: value for name, value in launch.arguments.items() if type(value) is int},
        "defines": dict(launch.defines),
        "sm": find_gpu(launch.gpu).sm,
        "reference": dict(texts),
        "budget": BUDGET,
    }


def _compared(
    ended: Ended, arrays: Mapping[str, np.ndarray], expected: Mapping[str, Any], tolerance: float | None
) -> CheckResult:
    outputs = {name: _output(name, arrays[name], np.asarray(value), tolerance) for name, value in expected.items()}
    wrong = [name for name, output in outputs.items() if not output.correct]
    message = ""
    if wrong:
        first = outputs[wrong[0]]
        message = (
            f"{wrong[0]}{list(first.where)} is {first.actual:.6g}, expected {first.expected:.6g}"
            f" (largest error {first.error:.3g}, tolerance {first.tolerance:.3g})"
        )
    return CheckResult(
        Outcome.INCORRECT if wrong else Outcome.OK,
        message,
        outputs,
        ended.result["counts"],
        ended.result["registers"],
        ended.result["spill_bytes"],
        arrays,
    )


def _output(name: str, actual: np.ndarray, expected: np.ndarray, tolerance: float | None) -> OutputCheck:
    if expected.size != actual.size or expected.dtype.kind not in "fiub":
        raise UsageError(
            f"the reference of {name} has the shape {expected.shape} of {expected.dtype}; expected numbers of the "
            f"shape {actual.shape}"
        )
    if actual.dtype.kind != "f" and not np.isfinite(expected).all():
        raise UsageError(f"the reference of {name} is not finite, but {name} holds integers")
    dtype = f"{actual.dtype.kind}{8 * actual.dtype.itemsize}"
    floating = actual.dtype.kind == "f"
    allowed = tolerance if tolerance is not None else rounding(dtype, _ASSUMED_TERMS) if floating else 0.0
    wanted = expected.reshape(-1).astype(np.float64 if floating else actual.dtype)
    stored = actual.reshape(-1)
    error = compare(stored, dtype, wanted, np, allowed, "reference")
    wide, exact = stored.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where((wide == exact) | (np.isnan(wide) & np.isnan(exact)), 0.0, np.abs(wide - exact))
    worst = int(np.argmax(np.where(np.isfinite(apart), apart, np.inf)))
    index = tuple(int(n) for n in np.unravel_index(worst, actual.shape))
    # Report an infinite error if only the expected value is NaN, because `compare` ignores the element.
    missing = bool((np.isnan(exact) & ~np.isnan(wide)).any())
    return OutputCheck(
        math.inf if missing else error.largest, allowed, error.unwritten, index, float(wide[worst]), float(exact[worst])
    )


def _plain(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)
