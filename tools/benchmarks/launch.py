"""The cost of `kernel(...)` beyond the driver's own call: processor time of a call on a stand-in for the device.

The stand-in takes the place of the driver at the edge of the process: its launch does nothing, memory is the host's. So
everything that kernrec does in a call is timed and nothing of a GPU. The bare launch is a loop over the stand-in's
launch with arguments that are packed already. Arrays of CuPy lie over host memory; tensors of PyTorch, where it is
installed, are on the CPU. Each figure is the best of five runs, for the machine may be busy.
"""

import importlib.util
import sys
from collections.abc import Callable
from time import process_time
from types import SimpleNamespace
from typing import Any

import numpy as np
from front import Table

from benchmarks.emulating_driver import EmulatingDriver
from kernrec.op import find_op
from kernrec.recommender import Query, Recommender
from kernrec.recommender.request import Objective
from kernrec.run import BuiltKernel
from kernrec.run.build import build_kernel
from kernrec.run.shapes import Shapes

AIM_US = 15.0


class StandIn(EmulatingDriver):
    """A device without a card, whose launch does nothing."""

    def __init__(self, device: int) -> None:
        super().__init__(89, device, "NVIDIA GeForce RTX 4090")

    def launch(self, *numbers: int) -> None:
        """Nothing."""

    def load(self, compiled: Any) -> Any:
        return compiled

    def function(self, module: Any, entry: str, shared_bytes: int) -> int:
        return 1

    def allocate(self, size: int) -> Any:
        return SimpleNamespace(ptr=1 << 20)

    def device_of(self, address: int) -> int:
        return self._device


def built(recommender: Recommender, op: str, device: int, **dims: Any) -> BuiltKernel:
    """A kernel for the stand-in."""
    shapes = Shapes.of(find_op(op), None, None, dims)
    return build_kernel(recommender, shapes, "rtx4090", Query(Objective.LATENCY), StandIn(device))


def cupy_array(shape: tuple[int, ...]) -> Any:
    """A CuPy array over host memory."""
    import cupy
    from cupy.cuda import MemoryPointer, UnownedMemory

    memory = np.zeros(int(np.prod(shape)) * 4 + 256, np.uint8)
    address = memory.ctypes.data + -memory.ctypes.data % 256
    return cupy.ndarray(shape, np.float32, MemoryPointer(UnownedMemory(address, memory.nbytes, memory, 0), 0))


def torch_array(shape: tuple[int, ...]) -> Any:
    """A tensor on the CPU."""
    import torch

    return torch.zeros(shape)


def seconds(call: Callable[[], Any], calls: int) -> float:
    """Processor time of a call, the best of five runs."""
    times = []
    for _ in range(5):
        start = process_time()
        for _ in range(calls // 5):
            call()
        times.append((process_time() - start) / (calls // 5))
    return min(times)


def run(calls: int = 20_000) -> int:
    """Print the overhead of each case; 1 where one is above the aim."""
    libraries: dict[str, tuple[int, Callable[[tuple[int, ...]], Any]]]
    libraries = {"cupy": (0, cupy_array), "torch": (-1, torch_array)}
    for library in [name for name in libraries if importlib.util.find_spec(name) is None]:
        print(f"{library} is not installed: left out", file=sys.stderr)
        del libraries[library]
    recommender, table = Recommender([]), Table()
    cases = [
        ("matmul, 1 launch", "matmul", {"m": range(1, 513), "n": 4096, "k": 64}, {"m": 512}),
        ("matmul, split-K", "matmul", {"m": range(1, 513), "n": 64, "k": 8192}, {"m": 64}),
        ("layernorm", "layernorm", {"rows": range(1, 4097), "columns": 1024}, {"rows": 512}),
    ]
    worst = 0.0
    for title, op, dims, values in cases:
        for library, (device, make) in libraries.items():
            kernel = built(recommender, op, device, **dims)
            problem = kernel.target.shapes.problem(values)
            tensors = {name: make(tensor.shape) for name, tensor in problem.tensors.items()}
            out = tensors.pop(problem.definition.outputs[0])
            arrays = tuple(tensors.values())
            kernel(*arrays, out=out, stream=7)
            (prepared,) = kernel._calls.values()
            launch, queued = StandIn(device).launch, prepared.launches.queued

            def bare(launch: Any = launch, queued: Any = queued) -> None:
                for function, gx, gy, gz, bx, by, bz, shared, packed in queued:
                    launch(function, gx, gy, gz, bx, by, bz, shared, 7, packed, 0)

            def call(kernel: Any = kernel, arrays: Any = arrays, out: Any = out) -> None:
                kernel(*arrays, out=out, stream=7)

            low, high = seconds(bare, calls) * 1e6, seconds(call, calls) * 1e6
            worst = max(worst, high - low)
            cells = {"case": title, "arrays": library, "bare [us]": low, "call [us]": high}
            table.row(cells | {"overhead [us]": high - low})
    print(f"worst {worst:.2f} us, aim {AIM_US:g} us")
    return int(worst > AIM_US)
