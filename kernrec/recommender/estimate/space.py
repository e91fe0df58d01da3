"""Kernels that implement problems of one op on one GPU, with their trained models and the database's rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.kernel import ProblemSpace
from kernrec.kernel.space import arguments
from kernrec.model.analytical.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.analytical.launch_time import epilogue
from kernrec.op import Problem
from kernrec.recommender.estimate.measured_rows import NOTHING, MeasuredRows, measured_rows
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.static_table import Array, StaticTable
from kernrec.store import Evidence
from kernrec.store.measurement_log import NO_EVIDENCE
from kernrec.util.cached_property import cached_property
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.model.baselines.model import GpuVendorModel
    from kernrec.recommender.estimate.correction import AppliedModel
    from kernrec.recommender.estimate.model_store import ModelStore

SHORTLIST = 512
"""Maximum number of configs per kernel to estimate fully. The engine selects them by a quick estimate of costs."""


@dataclass(frozen=True, eq=False)
class Space:
    """Kernels and configs that implement problems of one op, data type and layout on one GPU."""

    tables: Sequence[StaticTable]
    """Static tables of the kernels, at least one. The tables must be valid for all estimated problems."""
    models: "ModelStore | None" = None
    """Trained models. None means that only the analytical model is used."""
    evidence: Evidence = NO_EVIDENCE
    """Measurements and failures on the problem. They must be empty if several problems are estimated together."""
    whole: bool = False
    """Whether to estimate every config instead of only the most promising ones (`SHORTLIST`)."""

    @cached_property
    def gpu(self) -> GPU:
        return self.tables[0].gpu

    @cached_property
    def learned(self) -> "list[tuple[AppliedModel | None, bool]]":
        """Trained model of each kernel (or None), and whether the model was trained on the kernel and the GPU."""
        models = self.models
        scopes = models and [models.scope(t.kernel.op, t.kernel, t.gpu, t.space.dtype) for t in self.tables]
        if not scopes or not any(scopes):
            return [(None, False)] * len(self.tables)
        from kernrec.recommender.estimate.correction import applied

        return [
            (None, False) if scope is None else (applied(scope, table), scope.gpu_known and scope.kernel_known)
            for scope, table in zip(scopes, self.tables, strict=True)
        ]

    def vendor_model(self, problem: Problem) -> "GpuVendorModel | None":
        """Return the model of the vendor libraries, or None if there is none or if the inputs are not random."""
        if self.models is None:
            return None
        return self.models.vendor_model_on(problem, self.gpu, self.tables[0].conditions.inputs)


Part = tuple[Any, list[Any], Array | None, Array | None, Array | None, Array | None]
"""Arguments of the engine's `Costs` for one kernel:

    plan         kernel in the engine's form
    problems     problems in the engine's form
    rows         configs to estimate, or None for all configs that can run
    able         mask of the configs that can run, or None to use the mask in `plan`
    ran          measured configs, which are always estimated, or None
    epilogues    costs of each problem's epilogue, (problems, 4), or None
"""
Measured = tuple[MeasuredRows, ...]
"""Measured rows of a kernel on a problem, for each operating point."""


def parts_of(
    space: Space, problems: Sequence[Problem], points: tuple[OperatingPoint, ...]
) -> tuple[list[Part], list[Sequence[Problem]], list[Measured]]:
    """Return the arguments of the engine's `Costs`, the converted problems, and the measured rows of each kernel."""
    evidence, nothing = space.evidence, (NOTHING,) * len(points)
    any_rows = bool(evidence.measured or evidence.failed)
    parts: list[Part] = []  # `list[Part]()` takes longer.
    forms_of_each: list[Sequence[Problem]] = []
    measured: list[Measured] = []
    of_op: dict[str, tuple[list[Problem], list[Any], Array | None]] = {}
    """For each op: the problems converted to this op, the same problems in the engine's form, and their epilogues."""
    for table in space.tables:
        if (of_problems := of_op.get(table.kernel.op)) is None:
            forms = list(map(table.space.form, problems))
            of_problems = of_op[table.kernel.op] = forms, list(map(arguments, forms)), finishing(table, forms)
        forms, in_engine, epilogues = of_problems
        rows, able, ran = nothing, None, None
        if any_rows:
            rows = measured_rows(table.space, table.space.at(forms[0]), table.gpu, evidence, points)
            if rows[0] is not NOTHING:
                ran = np.unique(np.concatenate([at_point.rows for at_point in rows]))
                able = table.able_configs(table.space.at(forms[0]), ran)
                able[rows[0].failed] = False
        forms_of_each.append(forms)
        measured.append(rows)
        # A profile from sampled blocks already includes the epilogue.
        plan = table.plans[0] if table.plans else table.plan(forms[0])
        parts.append((plan, in_engine, None, able, ran, None if table.kernel.sampled else epilogues))
    return parts, forms_of_each, measured


def predict(table: StaticTable, on_problem: ProblemSpace, rows: Array) -> LimitedCosts:
    """Predict the costs of the configs in `rows` on one problem at the default power limit."""
    return table.power.apply_power_limit(NominalCosts(*costs_of_rows(table, on_problem, rows).nominal))


def costs_of_rows(table: StaticTable, on_problem: ProblemSpace, rows: Array) -> Any:
    """Return the engine's `Costs` of some configs of a kernel on one problem."""
    epilogues = None if table.kernel.sampled else finishing(table, [on_problem.problem])
    return costs_in_engine(
        [(table.plan(on_problem.problem), [arguments(on_problem.problem)], rows, None, None, epilogues)]
    )


def costs_in_engine(parts: list[Part], limits: Any = None, points: int = 0, most: int = 0) -> Any:
    """Return the engine's `Costs` for the configs of several kernels.

    Args:
        limits: power limit of the first operating point in the engine's form, or None for no power limit.
        points: number of operating points.
        most: maximum number of configs to estimate for each kernel and problem, or 0 for all configs.

    Raises:
        UsageError: an expression of a kernel has no value on a problem.
    """
    try:
        return query.Costs(parts, limits, points, most)
    except ValueError as error:
        raise UsageError(str(error)) from None


def finishing(table: StaticTable, problems: Sequence[Problem]) -> Array | None:
    """Return the costs of each problem's epilogue, such as a bias, or None if no problem has an epilogue.

    A row of the result has the core time (s), DRAM time (s), core energy (J) and DRAM energy (J), (problems, 4).
    """
    figures = None
    for number, problem in enumerate(problems):
        if (more := epilogue(table.gpu, table.power, problem)) is not None:
            core_s, core_j, dram_bytes = more
            slower = table.calibration.core_time if table.calibration else 1.0
            figures = np.zeros((len(problems), 4)) if figures is None else figures
            figures[number] = slower * core_s, dram_bytes / table.bandwidth, core_j, dram_bytes * table.dram_byte_j
    return figures
