"""Why no config of a kernel can run a problem: for messages."""

from collections.abc import Iterable
from dataclasses import replace

from kernrec.gpu import GPU
from kernrec.kernel import Kernel, Space, implemented
from kernrec.op import Problem


def needs(problem: Problem, gpu: GPU, kernels: Iterable[Kernel]) -> str:
    """What is implemented of the problem's op, and what of that keeps each of the kernels from running the problem."""
    wanted = (
        f"{kernel.name} needs {refusing_constraint(kernel, problem, gpu) or 'other shapes'!r}" for kernel in kernels
    )
    return f"{implemented(problem.op, gpu.sm)}, but {' and '.join(wanted)}"


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
