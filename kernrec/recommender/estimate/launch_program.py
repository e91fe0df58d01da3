"""The work of a launch from the flat program of its space: one call of the compiled core for all configs of a problem.

`prediction` evaluates the same expressions column by column where a space has no program: for the first problems, for
kernels profiled by a sample of blocks, and for many problems at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernrec.kernel import Expression
from kernrec.kernel.program import Program
from kernrec.kernel.spec import Launch, Workspace
from kernrec.model.prior.dram_traffic import TensorAccess
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class LaunchProgram:
    """Where a program leaves what a launch needs, as `core.launch_work` takes it."""

    arguments: tuple[Any, ...]
    """Those that are the same on every problem."""
    element_bytes: Array
    """Of each tensor that is a workspace, the bytes of an element; 0 for tensors of the problem; (tensors,)."""
    tensors: tuple[tuple[int, str], ...]
    """The tensors of the problem, by number and name."""

    @classmethod
    def of(
        cls,
        spec: Launch,
        loops: Sequence[str],
        access: TensorAccess,
        workspaces: Sequence[Workspace],
        program: Program,
        *fixed: Any,
    ) -> "LaunchProgram | None":
        """That of a launch; None where the program does not hold all of its expressions.

        Args:
            loops: those whose trips are counted.
            access: the tensors that the launch reads and writes.
            workspaces: of the kernel.
            fixed: the variant of each config, SMs, and bytes of L2.
        """
        by_name = {workspace.name: workspace for workspace in workspaces}
        own = [by_name.get(name) for name in access.tensors]
        expressions: list[Expression | None] = [spec.blocks, None if spec.visits is spec.blocks else spec.visits]
        expressions.append(spec.waits)
        for loop in loops:
            expressions += [spec.trips[loop], spec.depth[loop]]
        expressions += [extent for _, extent in spec.order] or [None]
        expressions += [workspace.elements if workspace else None for workspace in own]
        registers: list[int] = []
        for expression in expressions:
            output = program.outputs.get(expression) if expression else None
            if expression is not None and output is None:
                return None
            registers += [output.register, output.index] if output else [-1, -1]
        numbers = np.array(registers, dtype=np.int64) if program.form.compiled else registers
        variant, *gpu = fixed
        traffic = access.reads, access.axes, access.writes, access.scratch
        return cls(
            (numbers, len(loops), access.steps, variant, *traffic, *gpu, np.nan),
            np.array([float(ELEMENT_BYTES[workspace.dtype]) if workspace else 0.0 for workspace in own]),
            tuple((number, name) for number, name in enumerate(access.tensors) if name not in by_name),
        )

    def sizes(self, problem_bytes: Mapping[str, Any]) -> Array:
        """The bytes of each tensor, of workspaces those of an element; a problem has not all in each data type."""
        sizes = self.element_bytes.copy()
        for number, name in self.tensors:
            sizes[number] = problem_bytes.get(name, 0.0)
        return sizes
