"""Create the tensors of a kernel with the values that its spec declares."""

import ctypes
import mmap
import os
import sys
import weakref
from functools import cached_property
from pathlib import Path

import numpy as np

from kernrec.errors import UsageError, cannot_be
from kernrec.kernel.expression import parse
from kernrec.kernel.spec import Kernel, TensorValues
from kernrec.op import Problem, Tensor, encode_elements
from kernrec.op import inputs as op_inputs
from kernrec.util.files import check_input

MAPPED = sys.platform == "linux"
"""Whether the system can map the same memory several times."""

_PRIVATE, _FIXED, _ANONYMOUS, _NO_RESERVE = 0x02, 0x10, 0x20, 0x4000
_READ_WRITE = 0x3
_MOST_PIECES = 4096  # Linux allows 65,530 mappings per process.


def repeated(values: np.ndarray, count: int) -> np.ndarray:
    """Return a flat array with `count` elements that repeats `values`. Callers may write to the array."""
    size = count * values.itemsize
    if not MAPPED or values.nbytes % mmap.PAGESIZE or size > _MOST_PIECES * values.nbytes:
        return np.resize(values, count)
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def mapped(place: int | None, length: int, flags: int, file: int) -> int:
        address = library.mmap(place, length, _READ_WRITE, _PRIVATE | flags, file, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(os.strerror(ctypes.get_errno()))
        return int(address)

    file = os.memfd_create("values")
    try:
        with os.fdopen(os.dup(file), "wb") as stream:
            stream.write(values.view(np.uint8).data)
        start = mapped(None, size, _ANONYMOUS | _NO_RESERVE, -1)
        memory = (ctypes.c_char * size).from_address(start)
        weakref.finalize(memory, library.munmap, start, size)
        # Map the file repeatedly. All mappings share memory until a write, when Linux copies only the written page.
        for offset in range(0, size, values.nbytes):
            mapped(start + offset, min(values.nbytes, size - offset), _FIXED | _NO_RESERVE, file)
    finally:
        os.close(file)
    return np.frombuffer(memoryview(memory), values.dtype)


ELEMENTS = {
    "f64": np.float64, "f32": np.float32, "tf32": np.float32, "f16": np.float16, "bf16": np.uint16,
    "i64": np.int64, "u64": np.uint64, "i32": np.int32, "u32": np.uint32, "i16": np.int16, "u16": np.uint16,
    "i8": np.int8, "u8": np.uint8, "f8e4m3": np.uint8, "f8e5m2": np.uint8,
}  # fmt: skip
"""NumPy type of each data type. bf16 and 8-bit floats are stored as integers with the same bits."""

DRAWN_BYTES = 64 << 20
"""Maximum bytes of random values of a tensor. Larger tensors repeat these values."""
_DRAWN_TOGETHER = 1 << 20
_MOST_FILLED_BYTES = 512 << 20
_MOST_BYTES = 16 << 30  # Maximum size of all tensors. Tensors of zeros take no memory until they are written.


class Tensors:
    """Tensors of a problem, created on first use. Raises `UsageError` if they are too large for emulation."""

    def __init__(self, kernel: Kernel, problem: Problem, folder: Path | None = None) -> None:
        self._kernel, self._problem, self._folder = kernel, problem, folder
        self._bytes = sum(tensor.bytes for tensor in problem.tensors.values())
        if self._bytes > _MOST_BYTES:
            raise UsageError(f"{problem.key} has {self._bytes} bytes of tensors; at most {_MOST_BYTES} can be emulated")

    @cached_property
    def filled(self) -> dict[str, np.ndarray]:
        """Return the tensors with their declared values. Raise `UsageError` if they need too much memory."""
        samples = self._kernel.initial_values
        for name, sample in samples.items():
            if sample.kind == "unknown":
                raise UsageError(
                    f"argument {name}: addresses or branches depend on its contents, which are"
                    f" {sample.text or 'unknown'}: name a file with them, values = 'file.npy'"
                )
        size = sum(_memory(tensor, samples.get(name)) for name, tensor in self._problem.tensors.items())
        if size > _MOST_FILLED_BYTES:
            raise UsageError(
                f"the kernel's behavior depends on the values of its tensors, and those of {self._problem.key} take"
                f" {size} bytes of memory; at most {_MOST_FILLED_BYTES} bytes are filled: give a smaller problem"
            )
        return sample_tensors(self._kernel, self._problem, self._folder)

    @cached_property
    def blank(self) -> dict[str, np.ndarray]:
        """Return tensors of zeros. Use them only if addresses and branches do not depend on data."""
        return {name: np.zeros(t.elements, ELEMENTS[t.dtype]) for name, t in self._problem.tensors.items()}


def sample_tensors(kernel: Kernel, problem: Problem, folder: Path | None = None) -> dict[str, np.ndarray]:
    """Return the contents of a problem's tensors before the launch, as flat arrays in memory format."""
    if not kernel.initial_values:
        total = sum(tensor.bytes for tensor in problem.tensors.values())
        filled = op_inputs(problem) if total <= DRAWN_BYTES else {}
        return {
            name: filled[name].reshape(-1) if name in filled else np.zeros(tensor.elements, ELEMENTS[tensor.dtype])
            for name, tensor in problem.tensors.items()
        }
    draw = np.random.default_rng(0)
    return {
        name: _filled(tensor, kernel.initial_values[name], problem, folder, draw)
        for name, tensor in problem.tensors.items()
    }


def reference_tensors(kernel: Kernel, problem: Problem, folder: Path | None = None) -> dict[str, np.ndarray]:
    """Return the expected outputs that a spec declares, as flat arrays."""
    draw = np.random.default_rng(0)
    return {
        name: _filled(problem.tensors[name], sample, problem, folder, draw)
        for name, sample in kernel.references.items()
    }


def _filled(
    tensor: Tensor, sample: TensorValues, problem: Problem, folder: Path | None, draw: "np.random.Generator"
) -> np.ndarray:
    kind, count = ELEMENTS[tensor.dtype], tensor.elements
    if sample.kind in ("zeros", "unknown"):
        return np.zeros(count, kind)
    if sample.kind == "constant":
        return _encoded(np.full(count, sample.numbers[0]), tensor.dtype)
    if sample.kind in ("file", "raw"):
        return _loaded(tensor, (folder or Path()) / sample.text, sample.kind == "raw")
    if sample.kind == "expression":
        values = parse(sample.text).evaluate({**problem.sizes, "i": np.arange(count)})
        return _encoded(np.broadcast_to(np.asarray(values), count), tensor.dtype)
    low, high = sample.numbers if sample.kind in ("integers", "uniform") else (0, 100)
    if sample.kind in ("index", "offsets"):
        steps = sample.indexed.items()
        high = min(
            problem.tensors[name].elements // parse(step).whole_number(problem.sizes, 1, f"index of {name}")
            for name, step in steps
        )
        if sample.kind == "offsets":
            return _encoded(np.arange(count) * high // max(count - 1, 1), tensor.dtype)
    whole = sample.kind in ("index", "integers") or (sample.kind == "normal" and tensor.dtype[0] in "iu")
    encoded = np.empty(min(count, DRAWN_BYTES // np.dtype(kind).itemsize), kind)
    # Convert in pieces, because intermediate values take up to 16 times as much memory as the result.
    for start in range(0, encoded.size, _DRAWN_TOGETHER):
        size = min(_DRAWN_TOGETHER, encoded.size - start)
        if whole:
            values = draw.integers(int(low), max(int(high), int(low) + 1), size)
        elif sample.kind == "normal":
            values = draw.standard_normal(size, np.float32)
        else:
            values = draw.random(size, np.float32) * (high - low) + low
        encoded[start : start + size] = _encoded(values, tensor.dtype)
    return encoded if encoded.size == count else repeated(encoded, count)


def _memory(tensor: Tensor, sample: TensorValues | None) -> int:
    if sample is not None and sample.kind == "zeros":
        return 0
    drawn = sample is not None and sample.kind in ("normal", "uniform", "integers", "index")
    return min(tensor.bytes, DRAWN_BYTES) if drawn and MAPPED else tensor.bytes


def _encoded(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype in ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2"):
        return np.ascontiguousarray(encode_elements(np.asarray(values), dtype))
    return np.ascontiguousarray(values.astype(np.int64).astype(ELEMENTS[dtype]))


def load_npy(path: Path) -> np.ndarray:
    """Return the array of a `.npy` file as a memory map. Raise `UsageError` if the file is invalid."""
    check_input(path)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise UsageError(cannot_be("read", path, error)) from None
    except Exception:  # NumPy raises many kinds of exceptions for a damaged header.
        raise UsageError(f"{path} is not a NumPy file of plain values") from None
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{path} holds several arrays; expected a .npy file with one array")
    return array


def _loaded(tensor: Tensor, path: Path, raw: bool) -> np.ndarray:
    kind = np.dtype(ELEMENTS[tensor.dtype])
    try:
        check_input(path)
        array = np.fromfile(path, kind) if raw else load_npy(path)
    except OSError as error:
        raise UsageError(cannot_be("read", f"tensor {tensor.name}: {path}", error)) from None
    except UsageError as error:
        raise UsageError(f"tensor {tensor.name}: {error}") from None
    if array.size != tensor.elements or array.dtype != kind:
        content = f"{array.size} of {array.dtype}"
        raise UsageError(f"tensor {tensor.name}: {path} holds {content}, expected {tensor.elements} of {kind}")
    return np.array(array, order="C").reshape(-1)
