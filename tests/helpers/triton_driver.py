"""A stand-in for Triton's driver, with which Triton compiles kernels but does not run them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Tensor:
    """Stand-in for a tensor argument, without memory."""

    def __init__(self, dtype: str, *shape: int) -> None:
        self.dtype, self.shape = dtype, shape

    def data_ptr(self) -> int:
        return 1 << 20

    def __repr__(self) -> str:
        return f"Tensor({self.dtype}, {self.shape})"


class _Utils:
    """Functions that Triton calls in the driver's library."""

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        return 1, 1, 32, 0, 1024

    def unload_module(self, module: int) -> None:
        pass

    def get_device_properties(self, device: int) -> Mapping[str, int]:
        return {"max_shared_mem": 166912, "multiprocessor_count": 108, "warpSize": 32, "max_num_regs": 65536}


class StandInDriver:
    """Driver for a pretended GPU of compute capability `sm`, which runs nothing."""

    def __init__(self, sm: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", sm, 32)
        self.launched: list[Any] = []
        """Metadata of each launch."""
        self.synchronized = 0
        self.utils = _Utils()
        self.launcher_cls = lambda source, metadata: lambda *arguments: self.launched.append(metadata)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return self

    def synchronize(self) -> None:
        self.synchronized += 1

    def get_benchmarker(self) -> Any:
        raise AssertionError("nothing should be measured")


@contextmanager
def stand_in_driver(sm: int = 80) -> Iterator[StandInDriver]:
    """Make the stand-in Triton's active driver inside the context."""
    from triton.runtime.driver import driver

    stand_in = StandInDriver(sm)
    driver.set_active(stand_in)
    try:
        yield stand_in
    finally:
        driver._active = None
