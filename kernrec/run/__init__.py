"""Recommended kernels that run: `kernrec.build` makes a `BuiltKernel`, which takes arrays."""

from kernrec.run.built_kernel import BuiltKernel as BuiltKernel
from kernrec.run.plan import Plan as Plan
from kernrec.run.plan import PlanRow as PlanRow
