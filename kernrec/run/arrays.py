"""Read arrays of CuPy, PyTorch and other libraries, with one `Reader` per library.

Every call of a built kernel computes the `key` of each array, so `key` must be fast. Arrays with equal keys are checked
only once.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kernrec.errors import UsageError
from kernrec.op.problem import Tensor
from kernrec.util.light_dataclass import dataclass

ALIGNMENT = 16
"""Required alignment of a tensor's address in bytes, because kernels load up to 16 bytes at once."""

NAMES: Mapping[str, tuple[str, ...]] = {
    "f64": ("float64",), "f32": ("float32",), "tf32": ("float32",), "f16": ("float16",), "bf16": ("bfloat16", "uint16"),
    "f8e4m3": ("float8_e4m3fn", "uint8"), "i8": ("int8",),
}  # fmt: skip
"""Names of each dtype in other libraries: PyTorch's name first, NumPy's name last."""


@dataclass(frozen=True)
class ArrayFacts:
    """Shape, strides, dtype and location of an array."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Strides in elements."""
    dtype: str
    device: int
    """Number of the array's GPU, or -1 for host memory."""
    address: int
    of_torch: bool = False
    """Whether the array is a PyTorch tensor."""
    gradients: bool = False
    """Whether the array requires gradients."""

    @property
    def dense(self) -> bool:
        """Whether the elements are contiguous, with the last axis varying fastest."""
        return all(s == t for n, s, t in zip(self.shape, self.strides, dense_strides(self.shape), strict=True) if n > 1)


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous array."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def check(facts: ArrayFacts, expected: Tensor, device: int) -> None:
    """Raise `UsageError` if a kernel cannot use an array as the tensor `expected`.

    `device` is the number of the required GPU, or -1 for host memory.
    """
    name = expected.name
    if facts.device != device:
        places = ["on the CPU" if number < 0 else f"on GPU {number}" for number in (facts.device, device)]
        hint = "" if facts.device >= 0 or device < 0 else "; kernel.emulate(...) runs NumPy arrays on the CPU"
        raise UsageError(f"{name} is {places[0]}; expected {places[1]}, where the kernel runs{hint}")
    names = NAMES[expected.dtype][:1] if facts.of_torch else NAMES[expected.dtype]
    if facts.dtype not in names:
        raise UsageError(f"{name} has dtype {facts.dtype}; expected {' or '.join(names)}")
    if facts.shape != expected.shape:
        raise UsageError(f"{name} has shape {facts.shape}; expected {expected.shape}")
    if not facts.dense:
        dense = dense_strides(facts.shape)
        transposed = sorted(facts.strides, reverse=True) == list(facts.strides[:-2] + facts.strides[:-3:-1])
        remedy = "make it dense first, such as by .contiguous() or ascontiguousarray"
        if transposed and len(facts.shape) > 1:
            remedy = "it is a transposed view: build for the layout in which it is stored, or copy it"
        raise UsageError(f"{name} has strides {facts.strides}; expected {dense} (dense, last axis fastest): {remedy}")
    if facts.address % ALIGNMENT:
        raise UsageError(
            f"{name} starts at an address {facts.address % ALIGNMENT} bytes above a multiple of {ALIGNMENT};"
            f" expected a multiple: copy it (it is likely a slice)"
        )
    if facts.gradients:
        raise UsageError(
            f"{name} requires gradients, which this kernel does not compute; expected a tensor without:"
            " call it under torch.no_grad(), or give .detach()"
        )


class TorchReader:
    """Reader of PyTorch tensors."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.current_stream: Any = torch.cuda.current_stream
        self._gradients = torch.is_grad_enabled
        self.types = (torch.Tensor, torch.nn.Parameter)

    def device(self, array: Any) -> int:
        """Return the number of the array's GPU, or -1 for host memory."""
        return int(array.get_device())

    def key(self, array: Any) -> tuple[tuple[Any, ...], int]:
        """Return (hashable facts about the array, its address). The first fact is the number of the device."""
        address: int = array.data_ptr()
        gradients = array.requires_grad and self._gradients()
        here = array.get_device()
        return (here, array.shape, array.dtype, array.is_contiguous(), address % ALIGNMENT, gradients), address

    def facts(self, array: Any) -> ArrayFacts:
        dtype, gradients = str(array.dtype).removeprefix("torch."), array.requires_grad and self._gradients()
        place = array.get_device(), array.data_ptr()
        return ArrayFacts(tuple(array.shape), tuple(array.stride()), dtype, *place, of_torch=True, gradients=gradients)

    def stream(self, device: int) -> int:
        """Return the address of the current stream on a device."""
        return int(self.current_stream(device).cuda_stream)

    def empty(self, expected: Tensor, device: int) -> Any:
        """Return a new, uninitialized array on a device."""
        place = "cpu" if device < 0 else f"cuda:{device}"
        return self._torch.empty(expected.shape, dtype=getattr(self._torch, NAMES[expected.dtype][0]), device=place)


class CupyReader:
    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self.types = (cupy.ndarray,)

    def device(self, array: Any) -> int:
        return int(array.data.device_id)

    def key(self, array: Any) -> tuple[tuple[Any, ...], int]:
        data = array.data
        address: int = data.ptr
        return (data.device_id, array.shape, array.dtype, array.strides, address % ALIGNMENT), address

    def facts(self, array: Any) -> ArrayFacts:
        strides = tuple(step // array.itemsize for step in array.strides)
        return ArrayFacts(array.shape, strides, array.dtype.name, array.data.device_id, array.data.ptr)

    def stream(self, device: int) -> int:
        return int(self._cupy.cuda.get_current_stream(device).ptr)

    def empty(self, expected: Tensor, device: int) -> Any:
        return self._cupy.empty(expected.shape, NAMES[expected.dtype][-1])


@dataclass(frozen=True)
class View:
    """Array of another library, and the object that keeps its memory alive."""

    facts: ArrayFacts
    stream: int | None
    """Address of the stream in which the array is written, or None."""
    owner: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.facts.shape


class ViewReader:
    """Reader of other libraries' arrays. New arrays are CuPy arrays."""

    types = (View,)

    def device(self, array: View) -> int:
        return array.facts.device

    def key(self, array: View) -> tuple[tuple[Any, ...], int]:
        facts = array.facts
        return (facts.device, facts.shape, facts.dtype, facts.strides, facts.address % ALIGNMENT), facts.address

    def facts(self, array: View) -> ArrayFacts:
        return array.facts

    def stream(self, device: int) -> int:
        return CupyReader().stream(device)

    def empty(self, expected: Tensor, device: int) -> Any:
        return CupyReader().empty(expected, device)


Reader = TorchReader | CupyReader | ViewReader


def view_of(array: Any, name: str, driver: Any) -> View:
    """Return a view of an array of another library.

    Raise `UsageError` if the array has no `__cuda_array_interface__`.
    """
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise UsageError(
            f"{name} is a {type(array).__name__}; expected a CuPy or PyTorch array on a GPU, or an object with"
            " __cuda_array_interface__ (cupy.from_dlpack makes one); kernel.emulate(...) accepts NumPy arrays"
        )
    import numpy as np

    dtype = np.dtype(interface["typestr"])
    shape = tuple(int(extent) for extent in interface["shape"])
    steps = interface.get("strides")
    strides = dense_strides(shape) if steps is None else tuple(int(step) // dtype.itemsize for step in steps)
    address = int(interface["data"][0])
    stream = interface.get("stream")
    facts = ArrayFacts(shape, strides, dtype.name, driver.device_of(address), address)
    return View(facts, None if stream is None else int(stream), array)


def loaded_readers() -> dict[type, Reader]:
    """Return readers for the array libraries that the process has imported, keyed by array type."""
    readers: dict[type, Reader] = {View: ViewReader()}
    for library, reader in (("torch", TorchReader), ("cupy", CupyReader)):
        if library in sys.modules:
            made: Reader = reader()
            readers |= dict.fromkeys(made.types, made)
    return readers


def stream_address(stream: Any) -> int:
    """Return the address of a stream. `stream` is an object with an address, or already an address."""
    if type(stream) is int:
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("ptr", "cuda_stream"):
        if isinstance(getattr(stream, name, None), int):
            return int(getattr(stream, name))
    raise UsageError(
        f"stream is a {type(stream).__name__}; expected a CuPy or PyTorch stream, an object with __cuda_stream__, or"
        " the address of a stream"
    )
