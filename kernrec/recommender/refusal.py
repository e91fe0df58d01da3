"""Why no config of a kernel can run a problem: for messages."""

from dataclasses import replace

from kernrec.gpu import GPU
from kernrec.kernel import Kernel, Space
from kernrec.op import Problem


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
