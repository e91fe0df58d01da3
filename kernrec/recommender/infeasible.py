"""Explain why no config can run a problem, and suggest a similar problem or data type that can run."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from kernrec.errors import KernrecError, NoKernelError, UsageError
from kernrec.gpu import GPU, SmLimits
from kernrec.kernel import Kernel, Space, kernels_for
from kernrec.model.baselines.bound import rate_of
from kernrec.op import Problem
from kernrec.op.dtype import FORMATS, INSTEAD
from kernrec.op.equivalent import as_op

if TYPE_CHECKING:
    from kernrec.recommender.candidates import CandidateSet, KernelCandidates


def no_kernel_runs(candidates: "CandidateSet") -> NoKernelError:
    """Return the error that explains why no kernel of an op can run a problem."""
    problem, gpu = candidates.problem, candidates.gpu
    failed = sum(len(considered.measured_rows.failed) for considered in candidates.considered)
    kernels = [considered.table.kernel for considered in candidates.considered]
    reason = f" ({failed} failed when they were measured)" if failed else why_not(kernels, problem, gpu)
    return NoKernelError(f"no config of any kernel can run {problem.title} on {gpu.name}{reason}")


def none_runs(considered: "KernelCandidates") -> KernrecError:
    """Return the error that explains why no config of a kernel can run a problem."""
    table, problem = considered.table, considered.on_problem.problem
    kernel, gpu = table.kernel, table.gpu
    if failed := len(considered.measured_rows.failed):
        reason = f"{failed} failed when they were measured"
    elif problem.too_large:
        reason = problem.too_large
    elif not len(considered.on_problem.rows):
        reason = f"it needs {refusing_constraint(kernel, problem, gpu) or 'another shape'!r}"
    elif (unfit := table.unfit(considered.on_problem)).size and (
        too_large := table.too_large(considered.on_problem, int(unfit[0]))
    ):
        reason = too_large
    else:
        reason = (
            f"each of the {len(considered.on_problem.rows)} valid configs has no profile, does not fit on an SM or"
            f" (library kernels only) spills registers"
        )
    return KernrecError(f"no config of {kernel.name} can run {problem.title} on {gpu.name}: {reason}")


def empty_space(kernel: Kernel, problem: Problem, gpu: GPU) -> UsageError:
    """Return the error that explains which constraint of a kernel excludes every config."""
    if problem.too_large:
        return UsageError(f"{kernel.name}: {problem.title}: {problem.too_large}")
    if text := refusing_constraint(kernel, problem, gpu) or _empty_constraint(kernel, problem, gpu):
        return UsageError(
            f"{kernel.name}: the constraint {text!r} excludes every config on {gpu.name} for {problem.title}"
        )
    return UsageError(f"{kernel.name}: its constraints together exclude every config on {gpu.name} for {problem.title}")


def why_not(kernels: Sequence[Kernel], problem: Problem, gpu: GPU) -> str:
    """Return the end of an error message, which explains why no kernel runs a problem.

    The text suggests smaller sizes, data types or layouts. Without a suggestion, the text names a constraint of
    each kernel.
    """
    if problem.too_large:
        return f": {problem.too_large}"
    spaces = _spaces(kernels, problem, gpu)
    ways = [f"{name} of at most {most}" for name in _sizes(problem) if (most := _largest_size(spaces, problem, name))]
    ways += _runnable_kinds(problem, gpu)
    if ways:
        return f"; there is one for {', or for '.join(ways)}"
    refusing = ((kernel.name, refusing_constraint(kernel, problem, gpu)) for kernel in kernels)
    return "; " + " and ".join(
        f"{name} needs {text!r}" if text else f"{name} needs another shape" for name, text in refusing
    )


def refusing_constraint(kernel: Kernel, problem: Problem, gpu: GPU) -> str | None:
    """Return the constraint without which a config of the kernel could run, or None if there is none."""
    form = kernel.form(problem)
    for field in ("constraints", "implied"):
        for index, constraint in enumerate(getattr(kernel, field)):
            relaxed = _without(kernel, field, index, gpu.sm, gpu.limits, form.dtype, form.layout)
            if _runs([relaxed], problem):
                return str(constraint.text)
    return None


@lru_cache(maxsize=8)  # Enumerating a space may take long, so keep recent spaces.
def _without(kernel: Kernel, field: str, index: int, sm: int, limits: SmLimits, dtype: str, layout: str) -> Space:
    constraints = getattr(kernel, field)
    relaxed = replace(kernel, **{field: constraints[:index] + constraints[index + 1 :]})
    return Space(relaxed, sm, limits, dtype, layout)


def _empty_constraint(kernel: Kernel, problem: Problem, gpu: GPU) -> str | None:
    """Return the first constraint that alone excludes every config of a kernel, or None."""
    for constraint in (*kernel.constraints, *kernel.implied):
        alone = replace(kernel, constraints=(constraint,), implied=())
        if not _runs(_spaces([alone], problem, gpu), problem):
            return str(constraint.text)
    return None


def _spaces(kernels: Iterable[Kernel], problem: Problem, gpu: GPU) -> list[Space]:
    return [Space.of(kernel, problem, gpu) for kernel in kernels]


def _runs(spaces: Sequence[Space], problem: Problem) -> bool:
    able = [space for space in spaces if len(space) and as_op(problem, space.kernel.op)]
    return any(len(space.at(problem).rows) for space in able)


def _sizes(problem: Problem) -> dict[str, int]:
    return {dim.name: problem.sizes[dim.name] for dim in problem.definition.dims}


def _largest_size(spaces: Sequence[Space], problem: Problem, name: str) -> int | None:
    """Return the largest size of a dimension that can run, or None if the present size is not too large."""

    def runs(value: int) -> bool:
        try:
            changed = problem.definition.problem(problem.dtype, problem.layout, **_sizes(problem) | {name: value})
        except UsageError:  # Ops refuse some sizes.
            return False
        return _runs(spaces, changed)

    bad = _sizes(problem)[name]
    powers = [1 << place for place in range(bad.bit_length()) if 1 << place < bad]
    good = next((power for power in reversed(powers) if runs(power)), None)
    if good is None or runs(1 << bad.bit_length()):  # The present size is not too large.
        return None
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if runs(middle) else (good, middle)
    return good


def _runnable_kinds(problem: Problem, gpu: GPU) -> list[str]:
    """Return a text for each data type in which a kernel can run the problem. It names the layouts."""
    op = problem.definition
    others = [(problem.dtype, layout) for layout in op.layouts] + [(dtype, problem.layout) for dtype in op.dtypes]
    runnable: dict[str, list[str]] = {}
    for dtype, layout in others:
        try:
            other = op.problem(dtype, layout, **_sizes(problem))
        except UsageError:  # Skip data types that do not support the problem's scales or output type.
            continue
        kernels = [kernel for kernel in kernels_for(op.name, dtype, layout) if kernel.runs_on(dtype, gpu.sm)]
        if _runs(_spaces(kernels, other, gpu), other):
            runnable.setdefault(dtype, []).append(layout)
    return [f"{dtype} in {' or '.join(layouts)}" for dtype, layouts in runnable.items()]


EIGHT_BITS = ("f8e4m3", "i8", *FORMATS)
"""Data types of the operands of quantized layers."""


def instead_of(problem: Problem, gpu: GPU) -> Iterator[tuple[Problem, str]]:
    """Yield the problem in other data types, each with a note, if the GPU lacks the problem's data type."""
    if problem.dtype in EIGHT_BITS or rate_of(gpu, problem.dtype) > 0.0:
        return
    for dtype in replacements(problem, gpu):
        with suppress(UsageError):  # Skip data types that do not support the problem's scales or output type.
            other = problem.definition.problem(dtype, problem.layout, **problem.dim)
            yield other, no_arithmetic(problem, gpu, other)


def replacements(problem: Problem, gpu: GPU) -> list[str]:
    """Return the data types that can replace a problem's data type: types with a kernel first, then by similarity."""
    able = {dtype for kernel in kernels_for(problem.op) for dtype in kernel.dtypes if kernel.runs_on(dtype, gpu.sm)}
    fast = [dtype for dtype in INSTEAD.get(problem.dtype, ()) if rate_of(gpu, dtype) >= rate_of(gpu, "f32")]
    return sorted([each for each in fast if each in able or each not in EIGHT_BITS], key=lambda each: each not in able)


def no_arithmetic(problem: Problem, gpu: GPU, other: Problem) -> str:
    """Return a note that the problem `other` replaces `problem`, because the GPU lacks the data type."""
    return f"{problem.op}: the {gpu.title} has no {problem.dtype}; answered as {other.dtype}, {other.layout}"
