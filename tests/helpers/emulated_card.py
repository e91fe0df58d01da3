"""`tools/bench.py` with an emulator in place of a card: `python tests/helpers/emulated_card.py kernels ...`."""

import os
import runpy
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import on_gpu

from kernrec.compile import Compiled
from kernrec.ptx import KernelLaunch, Module, emulate, parse
from tests.helpers.paths import TOOLS

BROKEN = "EMULATED_CARD_BROKEN"
"""Environment variable: where it is set, every launch changes a byte of each buffer afterwards."""


class Array(np.ndarray):
    """A NumPy array with CuPy's way of getting it to the host."""

    def get(self) -> np.ndarray:
        return np.asarray(self)


class EmulatedCode:
    """Stands in for `on_gpu.Code`: entries that are called as CuPy's are, and run on the CPU."""

    def __init__(self, compiled: Compiled) -> None:
        module = parse(compiled.ptx)
        self.entries = {entry: _entry(module, entry) for entry in compiled.resources}


def _entry(module: Module, name: str) -> Callable[..., None]:
    def launch(grid: Any, block: Any, passed: Any, *, shared_mem: int) -> None:
        buffers = {f"b{i}": np.asarray(a) for i, a in enumerate(passed) if isinstance(a, Array)}
        order = [f"b{i}" if isinstance(a, Array) else a for i, a in enumerate(passed)]
        emulate(module, KernelLaunch(name, grid, block, order, buffers, shared_bytes=shared_mem), count=False)
        if BROKEN in os.environ:
            for buffer in buffers.values():
                buffer.view(np.uint8)[:1] ^= 0x40

    return launch


class StandInTimer:
    """Runs the work, and calls it a millisecond."""

    def __init__(self, card: on_gpu.Card) -> None:
        pass

    def seconds(self, work: Callable[[], object]) -> float:
        work()
        return 1e-3

    def copy_bandwidth(self) -> float:
        return 1e9


if __name__ == "__main__":
    cupy: Any = ModuleType("cupy")
    cupy.asarray = lambda a: np.ascontiguousarray(a).view(Array)
    cupy.full = lambda size, value, dtype: np.full(size, value, dtype).view(Array)
    cupy.uint8 = np.uint8
    import kernrec.compile.nvrtc as nvrtc  # the compiler is CuPy's own

    nvrtc.compiler()
    sys.modules["cupy"] = cupy
    on_gpu.find_card = lambda: on_gpu.Card("NVIDIA H200", 90, 50 << 20)
    on_gpu.Code, on_gpu.Timer = EmulatedCode, StandInTimer  # type: ignore[assignment, misc]
    runpy.run_path(str(TOOLS / "bench.py"), run_name="__main__")
