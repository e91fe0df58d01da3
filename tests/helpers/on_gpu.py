"""Run kernels through CuPy on this machine's GPU, or through a stand-in for CuPy on the emulator. The stand-in uses
kernrec's own driver library, because CuPy's wheels contain the CUDA runtime and cannot load another one."""

import ctypes
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernrec.capture.program_run import SOCKET_VARIABLE, accept, libraries
from kernrec.capture.recorded_calls import Recorder
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Kernel
from kernrec.kernel.binding import BoundLaunch, PackedArguments, bind_launches, workspaces
from kernrec.op import Problem
from kernrec.run.driver import Driver as CudaDriver
from tests.helpers.kernel_code import Config, assembled, not_assembled

STAND_IN = find_gpu("h200-sxm")
EMULATED = "emulated"
"""The stand-in's version of CuPy."""
_BUDGET = 200_000_000
_DYNAMIC_SHARED = 8
"""`CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`."""


class _NoCalls(Recorder):
    """Recorder that only counts launches."""

    def add(self, *launch: Any) -> None:
        self.launches += 1


class DriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")
        self.status = status


def _hide_from_triton() -> None:
    """Hide the GPU from Triton, which would load the CUDA library for good and launch kernels."""
    with suppress(ImportError):
        from triton.backends import backends

        backends["nvidia"].driver.is_active = staticmethod(lambda: False)


class Driver:
    """kernrec's driver library, and the thread that serves its calls."""

    def __init__(self, gpu: GPU) -> None:
        self.recorder, self._folder = _NoCalls(), tempfile.TemporaryDirectory()
        path = str(Path(self._folder.name, "socket"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=accept, args=(self._listener, gpu, self.recorder, _BUDGET), daemon=True).start()
        self._library = ctypes.CDLL(str(libraries() / "libcuda.so.1"), ctypes.RTLD_GLOBAL)
        _hide_from_triton()
        os.environ[SOCKET_VARIABLE] = path
        try:
            self.call("cuInit", 0)
            self.call("cuMemFree_v2", ctypes.c_uint64(self.allocate(1)))  # the first call connects to the emulator
        finally:
            del os.environ[SOCKET_VARIABLE]

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver. Raises `DriverError` if it fails."""
        if status := getattr(self._library, name)(*arguments):
            raise DriverError(status)

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def load(self, image: bytes) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        return module

    def function(self, module: ctypes.c_void_p, entry: str) -> int:
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        return function.value or 0

    def launch(self, function: int, *arguments: int) -> None:
        """Launch a kernel. `arguments` are the remaining arguments of `cuLaunchKernel` in order."""
        *extents, stream, addresses, extra = arguments
        pointers = map(ctypes.c_void_p, (stream, addresses, extra))
        self.call("cuLaunchKernel", ctypes.c_void_p(function), *extents, *pointers)


@cache
def driver() -> Driver:
    return Driver(STAND_IN)


class Memory:
    """Device memory, freed with the object."""

    def __init__(self, size: int) -> None:
        self.ptr, self._driver = driver().allocate(size), driver()

    def __del__(self) -> None:
        if not sys.is_finalizing():  # At interpreter exit, no thread serves calls.
            self._driver.call("cuMemFree_v2", ctypes.c_uint64(self.ptr))


class Array(np.ndarray):
    """Array in device memory, which this process can also read."""

    memory: Memory | None = None

    def __array_finalize__(self, base: object) -> None:
        self.memory = getattr(base, "memory", None)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data, device_id=0)

    def get(self) -> np.ndarray:
        return np.array(self)


def empty(shape: Any, dtype: Any = float) -> Array:
    dtype, count = np.dtype(dtype), int(np.prod(shape))
    memory = Memory(count * dtype.itemsize)
    raw = (ctypes.c_uint8 * max(count * dtype.itemsize, 1)).from_address(memory.ptr)
    array = np.frombuffer(raw, dtype, count).reshape(shape).view(Array)
    array.memory = memory
    return array


def full(shape: Any, value: Any, dtype: Any) -> Array:
    array = empty(shape, dtype)
    array[...] = value
    return array


def asarray(values: np.ndarray) -> Array:
    array = empty(values.shape, values.dtype)
    array[...] = values
    return array


class Module:
    def load(self, image: bytes) -> None:
        self._handle = driver().load(image + b"\0")

    def get_function(self, entry: str) -> Any:
        return SimpleNamespace(ptr=driver().function(self._handle, entry))


def set_attribute(function: int, attribute: int, value: int) -> None:
    driver().call("cuFuncSetAttribute", ctypes.c_void_p(function), attribute, value)


@contextmanager
def _device(number: int) -> Iterator[None]:
    yield


def _modules() -> dict[str, ModuleType]:
    properties = {
        "name": STAND_IN.title.encode(), "major": STAND_IN.sm // 10, "minor": STAND_IN.sm % 10,
        "l2CacheSize": STAND_IN.l2_bytes,
    }  # fmt: skip
    import cupy

    cupy.cuda.nvrtc.getVersion()  # load the real NVRTC, which compiles the kernels

    runtime = SimpleNamespace(
        CUDARuntimeError=DriverError, getDeviceCount=lambda: 1, getDeviceProperties=lambda number: properties,
        getDevice=lambda: 0, pointerGetAttributes=lambda address: SimpleNamespace(device=0, devicePointer=address),
    )  # fmt: skip
    driver_api = SimpleNamespace(
        CUDADriverError=DriverError, launchKernel=lambda *shape: driver().launch(*shape),
        funcSetAttribute=set_attribute,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=_DYNAMIC_SHARED,
    )  # fmt: skip
    modules = {name: ModuleType(name) for name in ("cupy", "cupy.cuda", "cupy.cuda.function")}
    modules["cupy.cuda.function"].__dict__.update(Module=Module)
    modules["cupy.cuda"].__dict__.update(
        runtime=runtime, driver=driver_api, Device=_device, Memory=Memory, function=modules["cupy.cuda.function"],
        nvrtc=cupy.cuda.nvrtc,
        get_current_stream=lambda device=0: SimpleNamespace(ptr=0),
    )  # fmt: skip
    modules["cupy"].__dict__.update(
        __version__=EMULATED, cuda=modules["cupy.cuda"], ndarray=Array, empty=empty, full=full, asarray=asarray,
        uint8=np.uint8,
    )  # fmt: skip
    return modules


@contextmanager
def stand_in_for_cupy() -> Iterator[None]:
    """Replace CuPy, which kernrec imports when it launches kernels."""
    load = CudaDriver.load
    with pytest.MonkeyPatch.context() as patch:
        for name, module in _modules().items():
            patch.setitem(sys.modules, name, module)
        # The stand-in executes PTX, not machine code.
        patch.setattr(CudaDriver, "load", lambda self, code: load(self, replace(code, cubin=code.ptx.encode())))
        yield


@dataclass(frozen=True)
class GpuInUse:
    """The GPU in use, or the GPU that the stand-in for CuPy emulates."""

    name: str
    sm: int
    """Compute capability, such as 90 for 9.0."""
    emulated: bool

    def code(self, kernel: Kernel, config: Config, dtype: str, layout: str) -> Any:
        """Load a config's code: machine code, or PTX for the emulator."""
        compiled = not_assembled if self.emulated else assembled
        return CudaDriver().load(compiled(kernel, config, dtype, layout, self.sm))


def has_gpu() -> bool:
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # CuPy has several exceptions for a missing or old driver.
        return False


@contextmanager
def gpu_in_use() -> Iterator[GpuInUse]:
    """Provide the first GPU of this machine, or its stand-in."""
    with nullcontext() if has_gpu() else stand_in_for_cupy():
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(0)
        sm = 10 * properties["major"] + properties["minor"]
        yield GpuInUse(properties["name"].decode(), sm, emulated=cupy.__version__ == EMULATED)


class Prepared:
    """A config with all tensors in device memory: `launch` enqueues its kernels, `outputs` copies the results back.
    Workspaces and outputs start as NaN (all bits set)."""

    def __init__(
        self, kernel: Kernel, config: Config, problem: Problem, sm: int, code: Any, tensors: Mapping[str, np.ndarray]
    ) -> None:
        import cupy

        self.shapes = {
            name: (tensor.shape, np.dtype({"f32": "f4", "tf32": "f4", "f16": "f2", "bf16": "u2"}[tensor.dtype]))
            for name, tensor in problem.tensors.items()
            if tensor.role == "output"
        }
        unwritten = {name: int(np.prod(shape)) * dtype.itemsize for name, (shape, dtype) in self.shapes.items()}
        unwritten |= {scratch.name: scratch.bytes for scratch in workspaces(kernel, config, problem, sm)}
        self.device = {name: cupy.asarray(tensor) for name, tensor in tensors.items()}
        self.device |= {name: cupy.full(size, 0xFF, cupy.uint8) for name, size in unwritten.items()}
        self._driver, self.calls = CudaDriver(), list[tuple[Any, BoundLaunch, PackedArguments]]()
        for launch in bind_launches(kernel, config, problem, sm):
            packed = PackedArguments.bound(launch)
            for name in packed.slots:
                packed.set_address(name, self.device[name].data.ptr)
            function = self._driver.function(code, launch.entry, launch.shared_bytes)
            self.calls.append((function, launch, packed))

    def launch(self) -> None:
        for function, launch, packed in self.calls:
            self._driver.launch(function, *launch.grid, *launch.block, launch.shared_bytes, 0, packed.address, 0)

    def outputs(self) -> dict[str, np.ndarray]:
        return {
            name: self.device[name].get().view(dtype).reshape(shape) for name, (shape, dtype) in self.shapes.items()
        }
