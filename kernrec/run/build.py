"""Build a callable kernel from ranges of shapes and a GPU, for `kernrec.build`."""

from kernrec.errors import unknown
from kernrec.gpu import find_gpu
from kernrec.recommender import Query, Recommender
from kernrec.recommender.request import SCALAR_OBJECTIVES
from kernrec.run.built_kernel import BuiltKernel
from kernrec.run.driver import CudaDriver, Driver
from kernrec.run.shapes import Shapes
from kernrec.run.variant import Target


def build_kernel(
    recommender: Recommender, shapes: Shapes, gpu: str, query: Query, driver: Driver | None = None
) -> BuiltKernel:
    """Return a kernel for all problems of `shapes`.

    Args:
        shapes: The problems.
        gpu: The GPU; `auto` for the current GPU of this machine.
        query: Objective (`latency`, `energy` or `edp`) and power limit.
        driver: Driver that launches the kernel; None for the GPUs of this machine.

    Raises:
        UsageError: The objective is a front, or the GPU is unknown.
        KernrecError: `auto` is given but there is no GPU, or no kernel can run a shape.
    """
    if query.objective not in SCALAR_OBJECTIVES:
        raise unknown("objective of a build, which needs one config per shape,", query.objective, SCALAR_OBJECTIVES)
    if gpu == "auto":
        driver = driver or CudaDriver()
        gpu = driver.name(driver.current_device())
    return BuiltKernel(Target(recommender, shapes, find_gpu(gpu), query), driver)
