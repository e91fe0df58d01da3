"""Run recommended kernels as functions of arrays. `kernrec.build` returns a `BuiltKernel`."""

from kernrec.run.built_kernel import BuiltKernel as BuiltKernel
from kernrec.run.shapes import Variant as Variant
