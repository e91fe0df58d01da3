"""From ranges of shapes and a GPU to a kernel that takes arrays: what `kernrec.build` does."""

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
    """A kernel for all problems of `shapes`.

    Args:
        recommender: the engine.
        shapes: the problems.
        gpu: the GPU; `auto` for the current one of this machine.
        query: objective (`latency`, `energy` or `edp`) and power limit.
        driver: to launch by; the GPUs of this machine if None.

    Raises:
        UsageError: the objective is a front, or the GPU is unknown.
        KernrecError: `auto` without a GPU, or a shape that nothing can run.
    """
    if query.objective not in SCALAR_OBJECTIVES:
        raise unknown("objective of a build, which needs one choice for a shape,", query.objective, SCALAR_OBJECTIVES)
    if gpu == "auto":
        driver = driver or CudaDriver()
        gpu = driver.name(driver.current_device())
    return BuiltKernel(Target(recommender, shapes, find_gpu(gpu), query), driver)
