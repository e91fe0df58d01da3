"""A built kernel on the CPU: its variant compiled to PTX and executed on NumPy arrays."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.profile.emulate_config import emulate_config
from kernrec.profile.tensor_values import ELEMENTS
from kernrec.ptx import parse
from kernrec.run.arrays import ArrayFacts, Expected, check

if TYPE_CHECKING:
    from kernrec.run.built_kernel import BuiltKernel

_MOST_FLOPS = 4e9
"""Of a problem that is emulated: the emulator does some 10 to 100 million a second."""


def emulated(kernel: "BuiltKernel", arrays: Sequence[Any], check_races: bool) -> np.ndarray:
    """The output for NumPy arrays; `BuiltKernel.emulate` says what is raised."""
    shapes = kernel.plan().shapes
    for name, array in zip(shapes.inputs, arrays, strict=True):
        if not isinstance(array, np.ndarray):
            raise UsageError(f"{name} is a {type(array).__name__}; emulate() takes NumPy arrays")
    problem = shapes.read([array.shape for array in arrays])
    if problem.flops > _MOST_FLOPS:
        raise UsageError(
            f"{problem.key} has {problem.flops:.2g} floating-point operations; at most {_MOST_FLOPS:.2g} are emulated:"
            " give smaller arrays"
        )
    tensors = {}
    for name, array in zip(shapes.inputs, arrays, strict=True):
        tensor = problem.tensors[name]
        strides = tuple(step // array.itemsize for step in array.strides)
        facts = ArrayFacts(array.shape, strides, array.dtype.name, -1, 0)
        check(facts, Expected(name, tensor.shape, tensor.dtype, tensor.bytes), -1)
        tensors[name] = array.view(ELEMENTS[tensor.dtype])
    output = problem.tensors[shapes.output]
    result = tensors[shapes.output] = np.zeros(output.shape, ELEMENTS[output.dtype])
    variant = kernel.variant(problem)
    module = parse(kernel.compiled(variant, problem).ptx)
    emulate_config(variant.kernel, variant.config, problem, (kernel.plan().gpu.sm, module), tensors, check_races)
    return result
