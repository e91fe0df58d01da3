"""A stand-in for the GPU driver that runs each launch's PTX in the emulator. Host addresses of NumPy arrays serve as
device addresses, so tests run all of kernrec's code except the driver calls."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kernrec.compile import Compiled
from kernrec.ptx import KernelLaunch, emulate, parse

_WINDOW = 1 << 16
"""Size in bytes of the memory that kernels can access at an unregistered address."""


class HostMemory:
    """NumPy array that implements `__cuda_array_interface__` like a GPU array."""

    def __init__(self, array: np.ndarray, stream: int | None = None) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "version": 3, "shape": array.shape, "typestr": array.dtype.str, "strides": array.strides,
            "data": (array.ctypes.data, False), "stream": stream,
        }  # fmt: skip


class EmulatingDriver:
    """Emulated device of architecture `sm` that uses host memory."""

    def __init__(self, sm: int, device: int = 0, name: str = "") -> None:
        self._sm, self._device, self._name = sm, device, name
        self._memory: dict[int, np.ndarray] = {}
        self.launched: list[tuple[str, int]] = []
        """(kernel, stream) of each launch."""
        self.loaded = 0

    def place(self, array: np.ndarray) -> np.ndarray:
        memory = np.empty(array.nbytes + 256, np.uint8)
        start = -memory.ctypes.data % 256
        here = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        here[...] = array
        self.know(here)
        return here

    def know(self, array: np.ndarray) -> None:
        """Let kernels access the array's memory."""
        self._memory[array.ctypes.data] = array.reshape(-1)

    def current_device(self) -> int:
        return self._device

    def sm(self, device: int) -> int:
        return self._sm

    def name(self, device: int) -> str:
        return self._name

    @contextmanager
    def use(self, device: int) -> Iterator[None]:
        yield

    def load(self, compiled: Compiled) -> Any:
        self.loaded += 1
        return parse(compiled.ptx)

    def function(self, module: Any, entry: str, shared_bytes: int) -> Any:
        return module, entry

    def allocate(self, size: int) -> Any:
        memory = self.place(np.full(size // 4, np.nan, np.float32))
        return type("Allocation", (), {"ptr": memory.ctypes.data, "array": memory})

    def device_of(self, address: int) -> int:
        return self._device if self._find(address) is not None else -1

    def _find(self, address: int) -> int | None:
        return next((a for a, array in self._memory.items() if a <= address < a + array.nbytes), None)

    def launch(self, function: Any, *numbers: int) -> None:
        module, entry = function
        gx, gy, gz, bx, by, bz, shared, stream, arguments, _ = numbers
        self.launched.append((entry, stream))
        pointers = ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p))
        passed: list[Any] = []
        buffers: dict[str, np.ndarray] = {}
        for number, parameter in enumerate(module.functions[entry].parameters):
            raw = ctypes.string_at(pointers[number], parameter.size)
            value = int.from_bytes(raw, "little")
            if parameter.size < 8 or not value:
                passed.append(raw)
                continue
            start = self._find(value)
            if start is None:  # unregistered memory, such as a copy made by PyTorch
                buffers[f"b{number}"] = np.ctypeslib.as_array((ctypes.c_uint8 * _WINDOW).from_address(value))
            else:
                buffers[f"b{number}"] = self._memory[start].view(np.uint8)[value - start :]
            passed.append(f"b{number}")
        grid, block = (gx, gy, gz), (bx, by, bz)
        emulate(module, KernelLaunch(entry, grid, block, passed, buffers, shared), count=False)
