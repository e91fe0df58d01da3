"""Why no config of any kernel can run a problem, and what near it could be run: for messages."""

from collections.abc import Sequence
from dataclasses import replace

from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, Space, kernels_for
from kernrec.op import Problem


def why_not(kernels: Sequence[Kernel], problem: Problem, gpu: GPU) -> str:
    """What would have to be different, in words: a dimension, the dtype or layout; else which constraints refuse."""
    spaces = _spaces(kernels, problem, gpu)
    ways = [f"{name} of at most {most}" for name in _sizes(problem) if (most := _most(spaces, problem, name))]
    ways += _elsewhere(problem, gpu)
    if ways:
        return f"; there is one for {', or for '.join(ways)}"
    refusing = ((kernel.name, refusing_constraint(kernel, problem, gpu)) for kernel in kernels)
    return "; " + " and ".join(
        f"{name} needs {text!r}" if text else f"{name} needs another shape" for name, text in refusing
    )


def refusing_constraint(kernel: Kernel, problem: Problem, gpu: GPU) -> str | None:
    """The first constraint that would leave some config if it were not there; None where no single one does it."""
    for field in ("constraints", "implied"):
        constraints = getattr(kernel, field)
        for index, constraint in enumerate(constraints):
            others = constraints[:index] + constraints[index + 1 :]
            trial = Space(replace(kernel, **{field: others}), gpu.sm, gpu.limits, problem.dtype, problem.layout)
            if len(trial) and len(trial.at(problem).rows):
                return str(constraint.text)
    return None


def empty_constraint(kernel: Kernel, problem: Problem, gpu: GPU) -> str | None:
    """The first constraint that leaves no config all by itself; None where no single one does."""
    for constraint in (*kernel.constraints, *kernel.implied):
        alone = replace(kernel, constraints=(constraint,), implied=())
        trial = Space(alone, gpu.sm, gpu.limits, problem.dtype, problem.layout)
        if not len(trial) or not len(trial.at(problem).rows):
            return str(constraint.text)
    return None


def _sizes(problem: Problem) -> dict[str, int]:
    return {dim.name: problem.sizes[dim.name] for dim in problem.definition.dims}


def _spaces(kernels: Sequence[Kernel], problem: Problem, gpu: GPU) -> list[Space]:
    return [Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout) for kernel in kernels]


def _run(spaces: Sequence[Space], problem: Problem) -> bool:
    return any(len(space) and len(space.at(problem).rows) for space in spaces)


def _most(spaces: Sequence[Space], problem: Problem, name: str) -> int | None:
    """The largest value of a dimension, the others as they are, up to which there is a config; None where it is not its
    size that is refused."""

    def runs(value: int) -> bool:
        try:
            changed = problem.definition.problem(problem.dtype, problem.layout, **_sizes(problem) | {name: value})
        except UsageError:  # dimensions that do not fit together
            return False
        return _run(spaces, changed)

    given = _sizes(problem)[name]
    powers = [1 << place for place in range(given.bit_length()) if 1 << place < given]
    good = next((power for power in reversed(powers) if runs(power)), None)
    if good is None or runs(1 << given.bit_length()):  # a larger one would do: it has to be divisible, say
        return None
    bad = given
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if runs(middle) else (good, middle)
    return good


def _elsewhere(problem: Problem, gpu: GPU) -> list[str]:
    """The same shape in the dtype's other layouts, and in the layout's other dtypes."""
    op = problem.definition
    others = [(problem.dtype, layout) for layout in op.layouts] + [(dtype, problem.layout) for dtype in op.dtypes]
    runnable: dict[str, list[str]] = {}
    for dtype, layout in others:
        try:
            other = op.problem(dtype, layout, **_sizes(problem))
        except UsageError:  # scales and types of the output are for some dtypes only
            continue
        kernels = [kernel for kernel in kernels_for(op.name, dtype, layout) if kernel.runs_on(dtype, gpu.sm)]
        if _run(_spaces(kernels, other, gpu), other):
            runnable.setdefault(dtype, []).append(layout)
    return [f"{dtype} in {' or '.join(layouts)}" for dtype, layouts in runnable.items()]
