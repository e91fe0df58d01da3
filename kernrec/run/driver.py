"""The driver's calls that launching needs: load code, queue kernels, allocate workspaces. All else needs no GPU.

`CudaDriver` is the real one, by CuPy. Tests put a stand-in in its place.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from kernrec.compile import Compiled
from kernrec.errors import KernrecError

NO_GPU = (
    "kernel.emulate(...) runs NumPy arrays on the CPU, and kernrec.build(gpu='h200', ...) plans for a GPU elsewhere"
)


class Driver(Protocol):
    """The edge of the process: calls that reach a GPU."""

    @property
    def launch(self) -> Callable[..., Any]:
        """Queues a kernel: function, grid x, y, z, block x, y, z, shared bytes, stream, arguments, 0."""

    @property
    def current_device(self) -> Callable[[], int]:
        """Gives the number of the device that calls go to."""

    def devices(self) -> int:
        """How many devices there are."""

    def sm(self, device: int) -> int:
        """Compute capability of a device, 90 for 9.0."""

    def name(self, device: int) -> str:
        """The name of a device as its driver gives it."""

    def use(self, device: int) -> AbstractContextManager[Any]:
        """Calls inside go to this device."""

    def load(self, compiled: Compiled) -> Any:
        """Code on the current device."""

    def function(self, module: Any, entry: str, shared_bytes: int) -> int:
        """A kernel of loaded code that may be launched with so much dynamic shared memory."""

    def allocate(self, size: int) -> Any:
        """Memory of the current device, freed with the object; its `ptr` is its address."""

    def device_of(self, address: int) -> int:
        """The device that an address belongs to; -1 for one of the host."""


class CudaDriver:
    """The GPUs of this machine, by CuPy. Raises `KernrecError` where there is none."""

    def __init__(self) -> None:
        try:
            from cupy.cuda import driver, runtime
        except ImportError:
            raise KernrecError(
                f"launching kernels needs CuPy: install it with `pip install '.[cuda13]'`; {NO_GPU}"
            ) from None
        self._driver, self._runtime = driver, runtime
        try:
            count = runtime.getDeviceCount()
        except runtime.CUDARuntimeError as error:
            raise KernrecError(f"there is no NVIDIA GPU to launch on ({error}); {NO_GPU}") from None
        if not count:
            raise KernrecError(f"there is no NVIDIA GPU to launch on; {NO_GPU}")
        self._count = int(count)
        self.launch = driver.launchKernel
        self.current_device = runtime.getDevice

    def devices(self) -> int:
        return self._count

    def sm(self, device: int) -> int:
        properties = self._runtime.getDeviceProperties(device)
        return int(properties["major"]) * 10 + int(properties["minor"])

    def name(self, device: int) -> str:
        name = self._runtime.getDeviceProperties(device)["name"]
        return name.decode() if isinstance(name, bytes) else str(name)

    def use(self, device: int) -> AbstractContextManager[Any]:
        from cupy.cuda import Device

        selected: AbstractContextManager[Any] = Device(device)
        return selected

    def load(self, compiled: Compiled) -> Any:
        from cupy.cuda.function import Module

        module = Module()
        try:
            module.load(compiled.cubin)
        except self._driver.CUDADriverError as error:
            raise KernrecError(f"the driver does not load the code: {error}") from None
        return module

    def function(self, module: Any, entry: str, shared_bytes: int) -> int:
        function = int(module.get_function(entry).ptr)
        try:
            if shared_bytes:  # more than 48 KiB, static included, needs this attribute
                attribute = self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._driver.funcSetAttribute(function, attribute, shared_bytes)
        except self._driver.CUDADriverError as error:
            raise KernrecError(f"{entry}: {shared_bytes} bytes of shared memory: {error}") from None
        return function

    def allocate(self, size: int) -> Any:
        # Not from a pool: its memory may still be in use on another stream.
        from cupy.cuda import Memory

        return Memory(size)

    def device_of(self, address: int) -> int:
        attributes = self._runtime.pointerGetAttributes(address)
        return int(attributes.device) if attributes.devicePointer else -1
