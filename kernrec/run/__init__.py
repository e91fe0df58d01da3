"""Recommended kernels that run: `kernrec.build` makes a `BuiltKernel`, which takes arrays."""

from kernrec.run.built_kernel import BuiltKernel as BuiltKernel
from kernrec.run.variant import Variant as Variant
