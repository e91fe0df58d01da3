"""Prepare one launch of a kernel for the engine, with the values that hold for every problem of a space.

A program of the space computes the quantities of each config for a problem. So one engine call estimates the launch
for all configs. Without a program, `prediction` evaluates the expressions column by column. That is the case for the
first problems, for kernels profiled from a sample of blocks, and for many problems at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernrec.kernel import Expression
from kernrec.kernel.program import Program
from kernrec.kernel.spec import Launch, Workspace
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.recommender.estimate.launch_table import LaunchTable
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class LaunchProgram:
    """One launch of a space's configs."""

    plan: Any
    """Plan of the launch in the engine's form."""
    loops: int
    """Number of loops of the launch."""
    element_bytes: Array
    """Bytes per element of each workspace tensor, 0 for tensors of the problem; (tensors,)."""
    tensors: tuple[tuple[int, str], ...]
    """Tensors of the problem, by number and name."""

    @classmethod
    def of(
        cls,
        spec: Launch,
        launch: LaunchTable,
        workspaces: Sequence[Workspace],
        program: Program,
        device: Any,
    ) -> "LaunchProgram | None":
        """Return the plan of a launch; None if the program lacks one of its expressions.

        Args:
            spec: the launch.
            launch: its table.
            workspaces: workspaces of the kernel.
            program: program of the space.
            device: the GPU in the engine's form.
        """
        by_name, access = {workspace.name: workspace for workspace in workspaces}, launch.access
        own = [by_name.get(name) for name in access.tensors]
        expressions: list[Expression | None] = [spec.blocks, None if spec.visits is spec.blocks else spec.visits]
        expressions.append(spec.waits)
        for loop in launch.loops:
            expressions += [spec.trips[loop], spec.depth[loop]]
        expressions += [extent for _, extent in spec.order] or [None]
        expressions += [workspace.elements if workspace else None for workspace in own]
        registers: list[int] = []
        for expression in expressions:
            output = program.outputs.get(expression) if expression else None
            if expression is not None and output is None:
                return None
            registers += [output.register, output.index] if output else [-1, -1]
        variant = launch.demand.first_alike.take(launch.variant, mode="clip")
        plan = query.LaunchPlan(
            program.in_engine, np.array(registers, dtype=np.int64), len(launch.loops), access.in_engine,
            launch.demand.in_engine, device, variant,
        )  # fmt: skip
        element_bytes = [float(ELEMENT_BYTES[workspace.dtype]) if workspace else 0.0 for workspace in own]
        tensors = tuple((number, name) for number, name in enumerate(access.tensors) if name not in by_name)
        return cls(plan, len(launch.loops), np.array(element_bytes), tensors)

    def sizes(self, problem_bytes: Mapping[str, Any]) -> Array:
        """Return the bytes of each tensor, or of an element for workspaces; a data type may lack some tensors."""
        sizes = self.element_bytes.copy()
        for number, name in self.tensors:
            sizes[number] = problem_bytes.get(name, 0.0)
        return sizes
