"""Define the measurements that every contributor takes.

In each measurement, a single resource such as DRAM limits the time. The results check the constants of the analytical
model, and reveal unusual GPUs, such as throttled GPUs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.kernel.library import find_kernel
from kernrec.kernel.space import Space
from kernrec.kernel.spec import Kernel
from kernrec.op import Problem, find_op


@dataclass(frozen=True)
class FixedMeasurement:
    """Measurement of a library kernel's config on a problem."""

    bound: str
    """Resource that limits the time on most GPUs, such as DRAM or FMA."""
    kernel_name: str
    config: Mapping[str, int]
    problem: Problem

    def kernel_on(self, gpu: GPU) -> Kernel | None:
        kernel, problem = find_kernel(self.kernel_name), self.problem
        if not kernel.runs_on(problem.dtype, gpu.sm):
            return None
        try:
            space = Space.of(kernel, problem, gpu)
            (row,) = space.find([self.config])
            return kernel if row >= 0 and row in space.at(problem).rows else None
        except KernrecError:
            return None


def fixed_part() -> tuple[FixedMeasurement, ...]:
    """Return the measurements that every contributor takes, in order."""
    elementwise, matmul = find_op("elementwise"), find_op("matmul")
    f16_product = matmul.problem("f16", "nt", m=4096, n=4096, k=4096)
    f32_product = matmul.problem("f32", "nn", m=4096, n=4096, k=4096)
    single, vectors = (
        _config("threads=128 vector=1 packets=1 passes=1"),
        _config("threads=256 vector=4 packets=1 passes=1"),
    )
    # `small` reads each operand twice as often as `large`, because its warps have 32 x 32 accumulators instead of 64 x
    # 64. Both have two stages, because every GPU can run two.
    large = "block_m=128 block_n=128 block_k=64 warp_m=64 warp_n=64 vector=8 stages=2 fragments=2 raster=8 split_k=1"
    small = "block_m=64 block_n=128 block_k=32 warp_m=32 warp_n=32 vector=1 stages=2 fragments=1 raster=8 split_k=1"
    blocked = (
        "block_m=128 block_n=128 block_k=16 thread_m=8 thread_n=8 lanes_m=4 vector=4 stages=2 async_copy=0 "
        "min_blocks=0 raster=8 split_k=1"
    )
    return (
        FixedMeasurement("launch", "elementwise_stream", single, elementwise.problem("f32", "row", n=4096)),
        FixedMeasurement("DRAM", "elementwise_stream", vectors, elementwise.problem("f32", "row", n=2**25)),
        FixedMeasurement("FMA", "matmul_simt", _config(blocked), f32_product),
        FixedMeasurement("tensor cores", "matmul_mma", _config(large), f16_product),
        FixedMeasurement("L2", "matmul_mma", _config(small), f16_product),
    )


def _config(text: str) -> dict[str, int]:
    pairs = (pair.split("=") for pair in text.split())
    return {name: int(value) for name, value in pairs}
