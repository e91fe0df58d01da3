"""Convert NumPy arrays to the tensors of a problem, so that a built kernel can be emulated on the CPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.op import Problem
from kernrec.profile.tensor_values import ELEMENTS
from kernrec.run.arrays import ArrayFacts, Expected, check
from kernrec.run.shapes import Shapes

_MOST_FLOPS = 4e9
"""Maximum number of floating-point operations to emulate."""


def host_tensors(shapes: Shapes, arrays: Sequence[Any]) -> tuple[Problem, dict[str, np.ndarray]]:
    """Return (problem, tensors keyed by name), for input arrays whose shapes determine the problem. The output is zero.

    Args:
        arrays: Contiguous NumPy arrays in the order of the inputs. A bf16 input contains the raw bits as uint16.

    Raises:
        UsageError: An array is not a NumPy array or has another shape, dtype or strides, or the problem is too large.
    """
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
    tensors[shapes.output] = np.zeros(output.shape, ELEMENTS[output.dtype])
    return problem, tensors
