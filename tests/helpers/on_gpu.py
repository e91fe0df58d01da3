"""Loads, launches and times library kernels on this machine's GPU through CuPy.

The benchmark and the tests marked `gpu` use this module. A kernel that faults also ends the process, so campaigns
should use `kernrec collect`.
"""

import ctypes
import importlib.util
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.compile import Compiled
from kernrec.errors import KernrecError
from kernrec.kernel import Kernel
from kernrec.kernel.binding import BoundLaunch, Pointer, Scalar, bind_launches, workspaces
from kernrec.kernel.tensor_map import MAP_BYTES, EncodedMap, MapHandle
from kernrec.op import Problem

_SCALARS: dict[str, Callable[[Any], Any]] = {"u32": np.uint32, "i32": np.int32, "i64": np.int64, "f32": np.float32}
_PLAIN_SHARED_BYTES = 48 * 1024
"""Dynamic shared memory in bytes that a launch can use without opting in (CUDA C++ Programming Guide)."""


class NoGPUError(KernrecError):
    """This machine has no usable GPU; the message says why."""


@dataclass(frozen=True)
class Card:
    """The GPU in use; `sm` is its compute capability, such as 90 for 9.0."""

    name: str
    sm: int
    l2_bytes: int


def find_card() -> Card:
    """Return the first GPU of this machine; raise `NoGPUError` with a one-line reason if there is none."""
    if importlib.util.find_spec("cupy") is None:
        raise NoGPUError("no GPU can be used: CuPy is not installed (pip install '.[cuda13]')")
    import cupy

    try:
        properties = cupy.cuda.runtime.getDeviceProperties(0) if cupy.cuda.runtime.getDeviceCount() else None
    except Exception as error:  # CuPy has several exceptions for a missing or old driver
        raise NoGPUError(f"no GPU can be used: {(str(error).splitlines() or [type(error).__name__])[0]}") from None
    if properties is None:
        raise NoGPUError("no GPU can be used: the driver lists none")
    return Card(properties["name"].decode(), 10 * properties["major"] + properties["minor"], properties["l2CacheSize"])


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
    """Loaded machine code of one compilation; CuPy's exceptions are passed on if loading fails."""

    def __init__(self, compiled: Compiled) -> None:
        import cupy

        # RawModule needs a file, and reads it on the first use of a function.
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name, "kernel.cubin")
        file.write_bytes(compiled.cubin)
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
            name: (tensor.shape, np.dtype({"f32": "f4", "f16": "f2", "bf16": "u2"}[tensor.dtype]))
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


class Timer:
    """Times work with CUDA events, after flushing L2 by writing a buffer of four times its size before each run.

    Meanwhile, the host enqueues the work, so the measured time does not include the launch overhead.
    """

    def __init__(self, card: Card) -> None:
        import cupy

        self.cupy = cupy
        self.buffer = cupy.zeros(max(4 * card.l2_bytes, 1 << 28), cupy.uint8)
        self.start, self.end = cupy.cuda.Event(), cupy.cuda.Event()

    def seconds(self, work: Callable[[], object], repeats: int = 15) -> float:
        """Return the median time of `repeats` runs in seconds, after two warm-up runs."""
        times = []
        for run in range(repeats + 2):
            self.buffer.fill(run)
            self.start.record()
            work()
            self.end.record()
            self.end.synchronize()
            times.append(self.cupy.cuda.get_elapsed_time(self.start, self.end) * 1e-3)
        return float(statistics.median(times[2:]))
