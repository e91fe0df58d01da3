"""Replace Triton's driver if there is no GPU, because packages ask it for the architecture on import.

Triton then reports a GPU of one architecture. Functions can be compiled and launched, but a launch runs nothing.
Packages that look for a driver find one; without it, vLLM disables Triton.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kernrec.compile.torch_stand_in import torch_without_gpu
from kernrec.gpu import GPU, find_gpu

ASSUMED = "a100"
"""GPU that Triton reports by default."""


def has_driver() -> bool:
    """Return whether Triton finds a driver with a GPU; False in `kernrec capture`, which does not emulate CUDA for
    Triton.
    """
    if os.environ.get("KERNREC_CAPTURE_SOCKET"):
        return False
    from triton.backends import backends

    try:
        return any(backend.driver.is_active() for backend in backends.values() if backend.driver is not None)
    except Exception:  # Triton raises various exceptions if a driver library cannot be loaded
        return False


class StandInDriver:
    """Triton driver with one GPU that runs nothing."""

    def __init__(self, gpu: GPU) -> None:
        from triton.backends.compiler import GPUTarget

        self._gpu = gpu
        self._target = GPUTarget("cuda", gpu.sm, 32)
        self.utils = self
        self.launcher_cls = lambda source, metadata: lambda *arguments: None

    def get_current_target(self) -> Any:
        return self._target

    def get_active_torch_device(self) -> Any:
        """Return the CPU, where torch's tensors are."""
        return sys.modules["torch"].device("cpu")

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_interface(self) -> Any:
        """Return torch's functions for GPUs, which `torch_without_gpu` replaces."""
        return sys.modules["torch"].cuda

    def get_benchmarker(self) -> Any:
        """Return a replacement of Triton's `do_bench`; all times are 0."""
        return lambda launch, quantiles=None, **options: [0.0] * len(quantiles or (0.5,))

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """Return (module, function, registers, spills, threads per block) without loading anything."""
        return 1, 1, 32, 0, 1024

    def unload_module(self, module: int) -> None:
        """Do nothing, because `load_binary` loads nothing."""

    def get_device_properties(self, device: int = 0) -> Mapping[str, int]:
        """Return the GPU's limits under the names of Triton's own driver."""
        gpu, limits = self._gpu, self._gpu.limits
        return {
            "max_shared_mem": limits.smem_per_block,
            "max_num_regs": limits.registers_per_sm,
            "multiprocessor_count": gpu.sms,
            "warpSize": 32,
            "sm_clock_rate": int(gpu.boost_clock_hz / 1e3),
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }


@contextmanager
def stand_in_driver(name: str = ASSUMED) -> Iterator[None]:
    """While the `with` block runs, let Triton and torch (if loaded) report a GPU, unless Triton has a driver.

    Args:
        name: name of the GPU to report.
    """
    if has_driver():
        yield
        return
    from triton.backends import backends
    from triton.runtime.driver import driver

    drivers = backends["nvidia"].driver
    before, active = drivers.__dict__.get("is_active"), driver._active
    drivers.is_active = staticmethod(lambda: True)
    card = find_gpu(name)
    driver.set_active(StandInDriver(card))
    try:
        with torch_without_gpu(card):
            yield
    finally:
        driver._active = active
        if before is None:
            del drivers.is_active
        else:
            drivers.is_active = before
