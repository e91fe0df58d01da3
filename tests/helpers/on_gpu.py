"""Loads and launches library kernels through CuPy on this machine's GPU, or through its stand-in on the emulator."""

import ctypes
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.compile import Compiled
from kernrec.kernel import Kernel
from kernrec.kernel.binding import BoundLaunch, Pointer, Scalar, bind_launches, workspaces
from kernrec.kernel.tensor_map import MAP_BYTES, EncodedMap, MapHandle
from kernrec.op import Problem
from tests.helpers.kernel_code import Config, assembled, not_assembled
from tests.helpers.stand_in import EMULATED, stand_in_for_cupy

_SCALARS: dict[str, Callable[[Any], Any]] = {"u32": np.uint32, "i32": np.int32, "i64": np.int64, "f32": np.float32}
_PLAIN_SHARED_BYTES = 48 * 1024
"""Dynamic shared memory in bytes that a launch can use without opting in (CUDA C++ Programming Guide)."""


@dataclass(frozen=True)
class Card:
    """The GPU in use, or the one that the stand-in for CuPy emulates."""

    name: str
    sm: int
    """Compute capability, such as 90 for 9.0."""
    emulated: bool

    def code(self, kernel: Kernel, config: Config, dtype: str, layout: str) -> "Code":
        """Return loaded code of a config: machine code, or PTX for the emulator."""
        return Code((not_assembled if self.emulated else assembled)(kernel, config, dtype, layout, self.sm))


def has_gpu() -> bool:
    """Return whether CuPy finds a GPU on this machine."""
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # CuPy has several exceptions for a missing or old driver.
        return False


@contextmanager
def card_in_use() -> Iterator[Card]:
    """Provide the first GPU of this machine, or its stand-in."""
    with nullcontext() if has_gpu() else stand_in_for_cupy():
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(0)
        sm = 10 * properties["major"] + properties["minor"]
        yield Card(properties["name"].decode(), sm, emulated=cupy.__version__ == EMULATED)


def arguments(launch: BoundLaunch, addresses: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a launch's arguments for CuPy: device arrays, and scalars of the size that the kernel expects."""
    return tuple(_argument(each, addresses) for each in launch.arguments)


def _argument(argument: Any, addresses: Mapping[str, Any]) -> Any:
    if isinstance(argument, Scalar):
        return _SCALARS[argument.ctype](argument.value)
    if isinstance(argument, Pointer) and argument.null:
        return np.uint64(0)
    address = addresses[argument.name]
    if not isinstance(argument, MapHandle):
        return address
    encoded = EncodedMap(argument)
    if not isinstance(address, np.generic):  # only arrays have device memory to point to
        encoded.value = address.data.ptr
    return np.frombuffer(ctypes.string_at(encoded.address, MAP_BYTES), f"V{MAP_BYTES}")[0]


class Code:
    """Loaded code of one compilation; CuPy's exceptions are passed on if loading fails."""

    def __init__(self, compiled: Compiled) -> None:
        import cupy

        # RawModule needs a file, and reads it on the first use of a function.
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name, "kernel.cubin")
        file.write_bytes(compiled.cubin or compiled.ptx.encode())
        module = cupy.RawModule(path=str(file))
        self.entries = {entry: module.get_function(entry) for entry in compiled.resources}


def to_device(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Copy tensors to device memory, so that configs can share them."""
    import cupy

    return {name: cupy.asarray(tensor) for name, tensor in tensors.items()}


class Prepared:
    """A config with all tensors in device memory: `launch` enqueues its kernels, `outputs` copies the results back.

    `tensors` are the inputs, on the host or from `to_device`. Workspaces and outputs start as NaN (all bits set).
    """

    def __init__(
        self,
        kernel: Kernel,
        config: Mapping[str, int],
        problem: Problem,
        sm: int,
        code: Code,
        tensors: Mapping[str, Any],
    ) -> None:
        import cupy

        self.shapes = {
            name: (tensor.shape, np.dtype({"f32": "f4", "tf32": "f4", "f16": "f2", "bf16": "u2"}[tensor.dtype]))
            for name, tensor in problem.tensors.items()
            if tensor.role == "output"
        }
        unwritten = {name: int(np.prod(shape)) * dtype.itemsize for name, (shape, dtype) in self.shapes.items()}
        unwritten |= {scratch.name: scratch.bytes for scratch in workspaces(kernel, config, problem, sm)}
        self.device = to_device(tensors)
        self.device |= {name: cupy.full(size, 0xFF, cupy.uint8) for name, size in unwritten.items()}
        self.calls: list[tuple[Any, BoundLaunch, tuple[Any, ...]]] = []
        for launch in bind_launches(kernel, config, problem, sm):
            function = code.entries[launch.entry]
            if launch.shared_bytes > _PLAIN_SHARED_BYTES:
                function.max_dynamic_shared_size_bytes = launch.shared_bytes
            self.calls.append((function, launch, arguments(launch, self.device)))

    def launch(self) -> None:
        for function, launch, passed in self.calls:
            function(launch.grid, launch.block, passed, shared_mem=launch.shared_bytes)

    def outputs(self) -> dict[str, np.ndarray]:
        return {
            name: self.device[name].get().view(dtype).reshape(shape) for name, (shape, dtype) in self.shapes.items()
        }
