"""Create a problem's inputs from a seed, and compute its outputs in float64.

Types that NumPy lacks are stored as bit patterns: uint16 for bf16, uint8 for floats of 8 or 4 bits. A 4-bit element
takes a byte, because only reference functions read it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernrec.errors import UsageError
from kernrec.op.problem import Problem

# Import NumPy late: a query needs no tensor values.
if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

_SMALL = ("f8e4m3", "f8e5m2", "f4e2m1", "e8m0")
_INTEGERS = {"i8": (-128, 127), "i4": (-8, 7)}
_NUMPY = {"f64": "float64", "f32": "float32", "f16": "float16", "tf32": "float32"}


def encode_elements(values: "Array", dtype: str) -> "Array":
    """Round values to a data type (to nearest, ties to even), and return them as they are stored in memory.

    In 8-bit and 4-bit types, values out of range become the largest number of their sign.
    """
    import numpy as np

    if dtype in _INTEGERS:
        least, most = _INTEGERS[dtype]
        return np.clip(np.rint(values), least, most).astype(np.int8)
    if dtype in _SMALL:
        from kernrec.util.small_floats import small_codes

        return small_codes(dtype, values)
    if dtype != "bf16":
        return values.astype(_NUMPY[dtype])
    values = values.astype(np.float32)
    bits = values.view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def decode_elements(stored: "Array", dtype: str) -> "Array":
    """Return the float64 values of an array from `encode_elements`."""
    import numpy as np

    if dtype in _SMALL:
        from kernrec.util.small_floats import small_values

        return small_values(dtype, stored).astype(np.float64)
    if dtype == "bf16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)


def inputs(problem: Problem, seed: int = 0) -> "dict[str, Array]":
    """Return random inputs of a problem, as they are stored in memory. They depend only on the problem and the seed.

    Activations have standard deviation 1. Weights have standard deviation 1/sqrt(n) for outputs that sum n products.
    Outputs are then of order 1, so that one absolute tolerance suits every problem. `Op.values` defines exceptions.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    distributions = problem.definition.values(problem.sizes)
    filled = {}
    for name, tensor in problem.tensors.items():
        if tensor.role == "input":
            values = generator.standard_normal(tensor.shape, np.float64 if tensor.dtype == "f64" else np.float32)
            mean, deviation = distributions.get(name, (0, 1))
            values *= deviation
            values += mean
            filled[name] = encode_elements(values, tensor.dtype)
    return filled


def reference(problem: Problem, inputs: "Mapping[str, Array]") -> "dict[str, Array]":
    """Compute a problem's outputs in float64 with NumPy. `inputs` are like the result of the function `inputs`, and may
    also be flat. Raise `UsageError` if an input is missing or has the wrong number of elements."""
    values = {}
    for name, tensor in problem.tensors.items():
        if tensor.role == "input":
            if name not in inputs or inputs[name].size != tensor.elements:
                flaw = f"has {inputs[name].size} elements" if name in inputs else "is missing"
                raise UsageError(f"input {name} of {problem.key} {flaw}; expected {tensor.elements} elements")
            values[name] = decode_elements(inputs[name], tensor.dtype).reshape(tensor.shape)
    return problem.definition.reference(problem.sizes, problem.layout, values)
