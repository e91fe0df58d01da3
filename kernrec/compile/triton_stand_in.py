"""A stand-in for Triton's driver where there is no GPU: packages ask it for the architecture when they are imported.

With it in place Triton says that it has a GPU of one architecture; functions can be compiled and launched up to the
launch itself, which runs nothing. Packages that look for a driver first (vLLM turns Triton off without one) find one.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from kernrec.compile.torch_stand_in import torch_properties, torch_without_gpu
from kernrec.gpu import GPU, find_gpu

ASSUMED = "a100"
"""The GPU that packages are told of where nobody named one."""


def has_driver() -> bool:
    """Whether Triton finds a driver with a GPU in this process; `kernrec capture` emulates CUDA, but not for Triton."""
    if os.environ.get("KERNREC_CAPTURE_SOCKET"):
        return False
    from triton.backends import backends

    try:
        return any(backend.driver.is_active() for backend in backends.values() if backend.driver is not None)
    except Exception:  # a library of the driver that cannot be loaded; Triton says it in several ways
        return False


class StandInDriver:
    """A driver with one GPU that runs nothing."""

    def __init__(self, gpu: GPU) -> None:
        from triton.backends.compiler import GPUTarget

        self._gpu = gpu
        self._target = GPUTarget("cuda", gpu.sm, 32)
        self.utils = self
        self.launcher_cls = lambda source, metadata: lambda *arguments: None

    def get_current_target(self) -> Any:
        return self._target

    def get_active_torch_device(self) -> Any:
        """Where torch's tensors are."""
        return sys.modules["torch"].device("cpu")

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_interface(self) -> Any:
        """Torch's interface of the device."""
        return SimpleNamespace(
            current_device=lambda: 0,
            set_device=lambda device: None,
            synchronize=lambda: None,
            device=lambda device: nullcontext(),
            current_stream=lambda device=None: SimpleNamespace(cuda_stream=0),
            get_device_properties=lambda device=None: torch_properties(self._gpu),
        )

    def get_benchmarker(self) -> Any:
        """Triton's `do_bench`; nothing takes time here."""
        return lambda launch, quantiles=None, **options: [0.0] * len(quantiles or (0.5,))

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spills and threads of a block: nothing is loaded."""
        return 1, 1, 32, 0, 1024

    def unload_module(self, module: int) -> None:
        """Nothing was loaded."""

    def get_device_properties(self, device: int = 0) -> Mapping[str, int]:
        """Limits of the card, under the names that Triton's own driver has."""
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
    """Inside, Triton has the stand-in where it has no driver of its own, and torch, if it is loaded, tells of the same
    GPU; with a driver nothing changes.

    Args:
        name: the GPU that it is taken to be.
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
