"""Replace a data type if the GPU has no arithmetic for it, and add a note."""

from collections.abc import Iterator
from contextlib import suppress

from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.kernel import kernels_for
from kernrec.model.vendor.bound import rate_of
from kernrec.op import Problem
from kernrec.op.dtype import FORMATS, INSTEAD

EIGHT_BITS = ("f8e4m3", "i8", *FORMATS)
"""Data types of quantized layers."""


def instead_of(problem: Problem, gpu: GPU) -> Iterator[tuple[Problem, str]]:
    """Yield the problem in the data types of `replacements`, each with a note.

    Yield nothing if the GPU computes in the problem's data type. Quantized types are never replaced, because users who
    ask about them compare GPUs.

    Args:
        problem: problem of an op.
        gpu: the GPU.
    """
    if problem.dtype in EIGHT_BITS or rate_of(gpu, problem.dtype) > 0.0:
        return
    for dtype in replacements(problem, gpu):
        with suppress(UsageError):  # Only some data types have scales and output types.
            other = problem.definition.problem(dtype, problem.layout, **problem.dim)
            yield other, no_arithmetic(problem, gpu, other)


def replacements(problem: Problem, gpu: GPU) -> list[str]:
    """Return the data types that can replace a problem's, nearest first, types with a kernel before types without.

    A type is left out if the GPU computes in it more slowly than in f32, as a P4 does in f16. So is a quantized type
    without a kernel.
    """
    able = {dtype for kernel in kernels_for(problem.op) for dtype in kernel.dtypes if kernel.runs_on(dtype, gpu.sm)}
    fast = [dtype for dtype in INSTEAD.get(problem.dtype, ()) if rate_of(gpu, dtype) >= rate_of(gpu, "f32")]
    return sorted([each for each in fast if each in able or each not in EIGHT_BITS], key=lambda each: each not in able)


def no_arithmetic(problem: Problem, gpu: GPU, other: Problem) -> str:
    """Return the note that a problem is answered in another data type."""
    return f"{problem.op}: the {gpu.title} has no {problem.dtype}; answered as {other.dtype}, {other.layout}"
