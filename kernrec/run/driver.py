"""Define the driver calls for launches: load code, queue kernels, allocate workspaces. Only these need a GPU.

`CudaDriver` makes the calls through CuPy; tests replace it.
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
    """Driver calls that reach a GPU."""

    @property
    def launch(self) -> Callable[..., Any]:
        """Return the launch function, with parameters function, grid x, y, z, block x, y, z, shared bytes, stream,
        arguments, 0.
        """

    @property
    def current_device(self) -> Callable[[], int]:
        """Return a function that returns the number of the current device."""

    def devices(self) -> int:
        """Return the number of devices."""

    def sm(self, device: int) -> int:
        """Return the compute capability of a device, such as 90 for 9.0."""

    def name(self, device: int) -> str:
        """Return the driver's name of a device."""

    def use(self, device: int) -> AbstractContextManager[Any]:
        """Return a context that makes this device current."""

    def load(self, compiled: Compiled) -> Any:
        """Load code on the current device."""

    def function(self, module: Any, entry: str, shared_bytes: int) -> int:
        """Return a kernel of loaded code that may use this many bytes of dynamic shared memory."""

    def allocate(self, size: int) -> Any:
        """Allocate memory on the current device. The returned object has the address in `ptr` and frees the memory."""

    def device_of(self, address: int) -> int:
        """Return the device that an address belongs to; -1 for the host."""


class CudaDriver:
    """Driver of this machine's GPUs through CuPy. Raises `KernrecError` if there is no GPU."""

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
            if shared_bytes:  # More than 48 KiB, including static memory, needs this.
                attribute = self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._driver.funcSetAttribute(function, attribute, shared_bytes)
        except self._driver.CUDADriverError as error:
            raise KernrecError(f"{entry}: {shared_bytes} bytes of shared memory: {error}") from None
        return function

    def allocate(self, size: int) -> Any:
        # Do not use the memory pool: its memory may still be in use on another stream.
        from cupy.cuda import Memory

        return Memory(size)

    def device_of(self, address: int) -> int:
        attributes = self._runtime.pointerGetAttributes(address)
        return int(attributes.device) if attributes.devicePointer else -1
