"""The work of a launch from the flat program of its space: one call of the compiled core for all configs of a problem.

`prediction` evaluates the same expressions column by column where a space has no program: for the first problems, for
kernels profiled by a sample of blocks, and for many problems at once.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.kernel import Expression
from kernrec.kernel.program import Program
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.util.compiled import core
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.kernel import ProblemSpace
    from kernrec.recommender.estimate.static_table import StaticTable

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class LaunchProgram:
    """Where a program leaves what a launch needs, as `core.launch_work` takes it."""

    registers: Any
    element_bytes: Array
    """Of each tensor that is a workspace, the bytes of an element; 0 for tensors of the problem; (tensors,)."""
    tensors: tuple[tuple[int, str], ...]
    """The tensors of the problem, by number and name."""

    @classmethod
    def of(cls, table: "StaticTable", index: int, program: Program) -> "LaunchProgram | None":
        """That of a launch; None where the program does not hold all of its expressions."""
        spec, launch = table.kernel.launches[index], table.launches[index]
        workspaces = {workspace.name: workspace for workspace in table.kernel.workspaces}
        tensors = launch.access.tensors
        own = [workspaces.get(name) for name in tensors]
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
        return cls(
            np.array(registers, dtype=np.int64) if program.form.compiled else registers,
            np.array([float(ELEMENT_BYTES[workspace.dtype]) if workspace else 0.0 for workspace in own]),
            tuple((number, name) for number, name in enumerate(tensors) if name not in workspaces),
        )

    def sizes(self, problem_bytes: dict[str, float]) -> Array:
        """The bytes of each tensor, of workspaces those of an element; a problem has not all in each data type."""
        sizes = self.element_bytes.copy()
        for number, name in self.tensors:
            sizes[number] = problem_bytes.get(name, 0.0)
        return sizes


def fill_work(figures: Array, table: "StaticTable", index: int, rows: Array, on_problem: "ProblemSpace") -> bool:
    """Writes the work of a launch of these rows, by row of `LaunchWork`; False where there is no program for it."""
    execution = on_problem.execution
    if execution is None or (launch := table.launch_program(index, execution.program)) is None:
        return False
    access, arithmetic = table.launches[index].access, core("kernrec.model.prior")
    if arithmetic.compiled != execution.program.form.compiled:
        return False
    execution.complete()
    arithmetic.functions.launch_work(
        execution.values,
        execution.program.indexes,
        launch.registers,
        len(table.launches[index].loops),
        access.steps,
        arithmetic.rows(rows),
        table.geometry(on_problem, index).columns,
        float(table.gpu.sms),
        launch.sizes(on_problem.tensor_bytes(rows)),
        access.reads,
        access.axes,
        access.writes,
        access.scratch,
        float(table.gpu.l2_bytes),
        np.nan,
        access.room(arithmetic.compiled),
        arithmetic.rows(figures),
    )
    return True
