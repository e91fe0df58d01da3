"""Create tensor values: seeded inputs in their memory format, and float64 results to compare kernels with.

NumPy has no bfloat16 and no floating-point numbers of 8 or 4 bits, so such tensors are stored as bit patterns (uint16,
uint8). A 4-bit element takes a whole byte, because only references read it. `encode_elements` and `decode_elements`
convert between values and the memory format, for every dtype.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernrec.errors import UsageError
from kernrec.op.problem import Problem

# Functions import NumPy themselves, because a query needs problems but not their values.
if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

_SMALL = ("f8e4m3", "f8e5m2", "f4e2m1", "e8m0")
_INTEGERS = {"i8": (-128, 127), "i4": (-8, 7)}
_NUMPY = {"f64": "float64", "f32": "float32", "f16": "float16", "tf32": "float32"}


def encode_elements(values: "Array", dtype: str) -> "Array":
    """Round `values` to `dtype` (to nearest, ties to even), and return an array of that dtype (bf16, f8: bit patterns).

    Types of 8 bits saturate at their largest number.
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
    """Return the float64 values of an array in memory format."""
    import numpy as np

    if dtype in _SMALL:
        from kernrec.util.small_floats import small_values

        return small_values(dtype, stored).astype(np.float64)
    if dtype == "bf16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)


def inputs(problem: Problem, seed: int = 0) -> "dict[str, Array]":
    """Return the problem's input tensors in their memory format, with normal values that depend only on the seed.

    Activations have standard deviation 1 and weights 1/sqrt(terms of the sum). So results are of order 1 for every
    size, and an absolute tolerance means the same for every problem. `Op.values` overrides this if a kernel that skips
    a step, such as subtracting the mean, would give the right result.
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
    """Return the problem's outputs in float64, computed by NumPy.

    Args:
        inputs: Arrays by name, in the memory format of the function `inputs`. Flat arrays are reshaped.

    Raises:
        UsageError: An input is missing or has the wrong number of elements.
    """
    values = {}
    for name, tensor in problem.tensors.items():
        if tensor.role == "input":
            if name not in inputs or inputs[name].size != tensor.elements:
                flaw = f"has {inputs[name].size} elements" if name in inputs else "is missing"
                raise UsageError(f"input {name} of {problem.key} {flaw}; expected {tensor.elements} elements")
            values[name] = decode_elements(inputs[name], tensor.dtype).reshape(tensor.shape)
    return problem.definition.reference(problem.sizes, problem.layout, values)
