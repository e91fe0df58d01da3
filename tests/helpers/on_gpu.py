"""Kernels of the library on the GPU of this machine, through CuPy: loaded as machine code, launched, timed.

For the bench and the tests marked `gpu`. Nothing here is careful: a kernel that faults takes the process with it. To
measure a campaign there is `kernrec collect`.
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
"""Dynamic shared memory that a launch gets without asking for more beforehand (CUDA C++ Programming Guide)."""


class NoGPUError(KernrecError):
    """There is no GPU here, or nothing that reaches it."""


@dataclass(frozen=True)
class Card:
    """The GPU in use. sm: its compute capability, 90 for 9.0."""

    name: str
    sm: int
    l2_bytes: int


def find_card() -> Card:
    """The first GPU of this machine. Raises `NoGPUError` with the reason, in one line, where there is none."""
    if importlib.util.find_spec("cupy") is None:
        raise NoGPUError("no GPU can be used: CuPy is not installed (pip install '.[cuda13]')")
    import cupy

    try:
        properties = cupy.cuda.runtime.getDeviceProperties(0) if cupy.cuda.runtime.getDeviceCount() else None
    except Exception as error:  # CuPy raises an error of its own for a driver that is missing or too old
        raise NoGPUError(f"no GPU can be used: {(str(error).splitlines() or [type(error).__name__])[0]}") from None
    if properties is None:
        raise NoGPUError("no GPU can be used: the driver lists none")
    return Card(properties["name"].decode(), 10 * properties["major"] + properties["minor"], properties["l2CacheSize"])


def arguments(launch: BoundLaunch, addresses: Mapping[str, Any]) -> tuple[Any, ...]:
    """A launch's arguments as CuPy takes them: device arrays, and scalars of the size the kernel expects."""
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
    if not isinstance(address, np.generic):  # an array on a card; a bare number is the address of nothing
        encoded.value = address.data.ptr
    return np.frombuffer(ctypes.string_at(encoded.address, MAP_BYTES), f"V{MAP_BYTES}")[0]


class Code:
    """The machine code of one compilation, loaded. Raises what CuPy raises where it cannot be."""

    def __init__(self, compiled: Compiled) -> None:
        import cupy

        # RawModule takes machine code as a file, and reads it when a function is first asked for something.
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name, "kernel.cubin")
        file.write_bytes(compiled.cubin)
        module = cupy.RawModule(path=str(file))
        self.entries = {entry: module.get_function(entry) for entry in compiled.resources}


def to_device(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Tensors in device memory, for configs to share."""
    import cupy

    return {name: cupy.asarray(tensor) for name, tensor in tensors.items()}


class Prepared:
    """A config on a problem with everything in device memory: `launch` enqueues it, `outputs` fetches what it left.

    tensors: the inputs, on the host or from `to_device`. Workspaces and outputs begin as NaN (all bits set).
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
    """Times work with events, its data no longer in L2: a buffer of four times its size is written before each run.

    While that is written the host has time to enqueue what is timed, so that what launching costs it does not count.
    """

    def __init__(self, card: Card) -> None:
        import cupy

        self.cupy = cupy
        self.buffer = cupy.zeros(max(4 * card.l2_bytes, 1 << 28), cupy.uint8)
        self.start, self.end = cupy.cuda.Event(), cupy.cuda.Event()

    def seconds(self, work: Callable[[], object], repeats: int = 15) -> float:
        """The median of `repeats` runs in seconds, after two that do not count."""
        times = []
        for run in range(repeats + 2):
            self.buffer.fill(run)
            self.start.record()
            work()
            self.end.record()
            self.end.synchronize()
            times.append(self.cupy.cuda.get_elapsed_time(self.start, self.end) * 1e-3)
        return float(statistics.median(times[2:]))
