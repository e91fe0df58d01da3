"""Represent kernels as data: specs, expressions, spaces of configs, and launches of a config on a problem.

>>> from kernrec.kernel import Space, find_kernel
>>> kernel = find_kernel("matmul_simt")
>>> space = Space(kernel, gpu.sm, gpu.limits, "f32", "nn")
>>> here = space.at(problem)
>>> blocks = here.column(kernel.launches[0].blocks, here.rows)
>>> bind_launches(kernel, space.config(0), problem, gpu.sm)  # one config, every number fixed
"""

from kernrec.kernel.binding import BoundLaunch, Pointer, Scalar, Scratch, bind_launches, probe_problems, workspaces
from kernrec.kernel.expression import Expression, parse
from kernrec.kernel.library import able_kernels, all_kernels, find_kernel, kernel_names, kernels_for, kernels_of
from kernrec.kernel.space import ProblemSpace, Space
from kernrec.kernel.spec import Config, Kernel, PointerArgument, ScalarArgument
from kernrec.kernel.spec_reader import load_kernel
from kernrec.util.human import config_text

__all__ = [
    "BoundLaunch",
    "Config",
    "Expression",
    "Kernel",
    "Pointer",
    "PointerArgument",
    "ProblemSpace",
    "Scalar",
    "ScalarArgument",
    "Scratch",
    "Space",
    "able_kernels",
    "all_kernels",
    "bind_launches",
    "config_text",
    "find_kernel",
    "kernel_names",
    "kernels_for",
    "kernels_of",
    "load_kernel",
    "parse",
    "probe_problems",
    "workspaces",
]
