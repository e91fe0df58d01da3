"""Provide the CUDA driver calls that launches need."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from kernrec.compile import Compiled
from kernrec.errors import KernrecError

NO_GPU = (
    "kernel.emulate(...) runs NumPy arrays on the CPU, and kernrec.build(gpu='h200', ...) plans for a GPU elsewhere"
)


class Driver:
    """CUDA driver calls through CuPy. Raise `KernrecError` if there is no GPU."""

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
        self.launch: Callable[..., Any] = driver.launchKernel
        """Function that launches a kernel: (function, grid x, y, z, block x, y, z, shared bytes, stream, arguments, 0).
        """
        self.current_device: Callable[[], int] = runtime.getDevice

    def sm(self, device: int) -> int:
        """Return the compute capability of a device, such as 90 for 9.0."""
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
        """Load compiled code on the current device, and return a handle of the module."""
        from cupy.cuda.function import Module

        module = Module()
        try:
            module.load(compiled.cubin)
        except self._driver.CUDADriverError as error:
            raise KernrecError(f"the driver does not load the code: {error}") from None
        return module

    def function(self, module: Any, entry: str, shared_bytes: int) -> int:
        """Return the kernel `entry` of a loaded module, and permit `shared_bytes` of dynamic shared memory."""
        function = int(module.get_function(entry).ptr)
        try:
            # Without the attribute, CUDA refuses more than 48 KiB of shared memory (static and dynamic).
            if shared_bytes:
                attribute = self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._driver.funcSetAttribute(function, attribute, shared_bytes)
        except self._driver.CUDADriverError as error:
            raise KernrecError(f"{entry}: {shared_bytes} bytes of shared memory: {error}") from None
        return function

    def allocate(self, size: int) -> Any:
        """Allocate bytes on the current device. The returned object owns the memory and has the address `ptr`."""
        # Allocate outside of CuPy's memory pool, whose free memory may still be in use on another stream.
        from cupy.cuda import Memory

        return Memory(size)

    def device_of(self, address: int) -> int:
        """Return the number of an address's device, or -1 for host memory."""
        attributes = self._runtime.pointerGetAttributes(address)
        return int(attributes.device) if attributes.devicePointer else -1
