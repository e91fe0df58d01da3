"""Rank configs: correct the analytical model's costs with trained models, measurements, physics and reference times.

A measurement replaces the prediction at its operating point, and corrects the predictions at all other points.
Without the correction, a config that was measured to be slow would still be recommended at every other point.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.analytical.launch_costs import LimitedCosts
from kernrec.model.analytical.power import PowerModel
from kernrec.op import Problem
from kernrec.recommender.estimate.costs import ANALYTICAL, Costs, Rescaling, carried_over, with_measured
from kernrec.recommender.estimate.measured_rows import NOTHING, MeasuredRows, applies
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.physics import impossible, physical_bounds
from kernrec.recommender.estimate.reference import (
    UNMEASURED,
    ReferenceTime,
    Shrinkage,
    derived_reference,
    predict_references,
    reference_of,
    whole_deviation,
)
from kernrec.recommender.estimate.space import SHORTLIST, Space, costs_in_engine, parts_of
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import MeasuredAnswer
from kernrec.util.cached_property import cached_property
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.recommender.estimate.correction import AppliedModel, ModelScope

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class KernelMeasurements:
    """Measurements of a kernel's candidates on one problem, and predictions scaled to the measurements."""

    measured: tuple[dict[int, MeasuredAnswer], ...]
    """Measurements at each operating point, keyed by the index of the candidate."""
    predicted: Costs
    """Predicted costs of all candidates after scaling to the measurements. Arrays have shape (points, candidates)."""
    rescaling: Rescaling


class RankedKernel:
    """Kernel with its trained model, its measurements, and the predicted costs of its configs on all problems.

    Args:
        forms: problems, converted to the kernel's op.
        costs: the engine's `Costs` of all kernels.
        number: index of the kernel in `costs`.
        counted: index of the first config, index of the occupancy heuristic's config, and number of configs.
        column: index of the kernel's first config among the configs of all kernels.
        measured: measured rows at each operating point.
        learned: trained model or None, and whether it was trained on recordings of this kernel on this GPU.
    """

    def __init__(
        self,
        table: StaticTable,
        forms: Sequence[Problem],
        costs: Any,
        number: int,
        counted: tuple[Sequence[int], Sequence[int], Sequence[int]],
        column: int,
        measured: tuple[MeasuredRows, ...],
        learned: "tuple[AppliedModel | None, bool]",
    ) -> None:
        self.table, self.number, self.column, self.measured = table, number, column, measured
        self._costs, self.forms = costs, forms
        self.starts, self.heuristics, self.counts = counted
        """For each problem: index of the first config in `rows`, index of the occupancy heuristic's config, and number
        of configs. `starts` ends with the total number of configs."""
        self.model, self.trained = learned
        self.taken: list[tuple[Array, list[MeasuredAnswer]]] | None = None
        """Indices and measurements of the measured candidates at each operating point. None without database rows."""
        positions, self.is_measured = None, False
        if measured[0] is not NOTHING:
            self.taken = [at_point.at(self.rows) for at_point in measured]
            positions = [positions for positions, _ in self.taken]
            self.is_measured = any(map(len, positions))
        triton = table.kernel.triton is not None
        self.in_engine = self.model and self.model.in_engine, self.trained, triton, positions
        self.is_reference = triton and self.trained
        """Whether this kernel's predicted times serve as a reference for other kernels."""
        self.row_kinds: Sequence[int] = ()
        """Alignment of the matrices' rows in each problem, as an index in `AppliedModel.by_row_kind`."""

    @cached_property
    def rows(self) -> Array:
        """Index of each estimated config in the config space, ordered by problem."""
        rows: Array = self._costs.rows(self.number)
        return rows

    def scope_on(self, problem: int) -> "ModelScope | None":
        """Return the trained model that corrects the costs on a problem, or None if there is none."""
        if self.model is None:
            return None
        most = max([len(positions) for positions, _ in self.taken]) if self.taken else 0
        return self.model.by_row_kind[self.row_kinds[problem]].after(most)


class RankedSpace:
    """Ranked candidates of all kernels on one or more problems."""

    def __init__(self, space: Space, problems: Sequence[Problem], points: tuple[OperatingPoint, ...]) -> None:
        self.space, self.problems, self.points = space, problems, points
        self.gpu, power = space.gpu, space.tables[0].power
        parts, forms, measured = parts_of(space, problems, points)
        most = 0 if space.whole else SHORTLIST
        self.in_engine = costs = costs_in_engine(parts, power.setting(points[:1]), len(points), most)
        """Engine's `Costs` at the first operating point."""
        self.kernels: list[RankedKernel] = []
        in_engine, learned, column = [], False, 0
        models = space.learned
        for number, counted in enumerate(costs.kernels):
            table, of_op = space.tables[number], forms[number]
            kernel = RankedKernel(table, of_op, costs, number, counted, column, measured[number], models[number])
            self.kernels.append(kernel)
            in_engine.append(kernel.in_engine)
            learned |= kernel.is_reference
            column += kernel.starts[-1]
        self.measurements: dict[int, KernelMeasurements] = {}
        if len(problems) > 1:
            predict_references(space, problems)
        figures: list[float] = []
        self._references = []
        for problem in problems:
            references, of_problem = self._references_of(problem, learned)
            self._references.append(references)
            figures += of_problem
        limits_w, highest_hz, default = _limits(self.gpu, points)
        self.ranking = query.Ranking(
            costs,
            in_engine,
            limits_w,
            highest_hz,
            default,
            power.setting(points[1:]) if len(points) > 1 else None,
            None if default[0] else power.setting((DEFAULT_POINT,)),
            figures,
            ANALYTICAL,
            space.whole,
            self._measure,
        )
        for number, kernel in enumerate(self.kernels):
            if kernel.model is not None:
                kernel.row_kinds = self.ranking.row_kinds(number)

    @cached_property
    def limited(self) -> LimitedCosts:
        """Latency, power and energy from the analytical model, (points, C). Costs without an estimate are infinite."""
        return LimitedCosts._make([*self.ranking.limited, self.in_engine.nominal[4]])

    def shrinkage(self, kernel: int, problem: int) -> Shrinkage:
        """Return the correction of a kernel's predicted times towards the reference time of a problem."""
        origin, latency_s, deviation, transferred, *own = self.ranking.shrinkage(kernel, problem)
        if origin < _PHYSICS:
            return Shrinkage(None, *own)
        baseline, by_physics = self._references[problem]
        named = by_physics if origin == _PHYSICS else baseline
        name = self.kernels[origin].table.kernel.name if origin >= 0 or named is None else named.name
        return Shrinkage(ReferenceTime(name, latency_s, deviation, transferred), *own)

    def foreign(self, problem: Problem, point: OperatingPoint) -> list[MeasuredAnswer]:
        """Return the measurements of kernels outside kernrec's library at an operating point, fastest first."""
        others = self.space.evidence.foreign
        return [row for row in others if applies(row, self.gpu, point) and not impossible(row, problem, self.gpu)]

    def _references_of(
        self, problem: Problem, learned: bool
    ) -> tuple[tuple[ReferenceTime | None, ReferenceTime | None], tuple[float, ...]]:
        """Return the reference times of the fastest baseline and of a physical model, and arguments for the engine.

        A missing reference time is None. The physical model is used only if `learned` is true and no baseline exists.
        """
        baseline, derived = reference_of(self.space, problem), None
        recorded = by_physics = nan, nan, inf
        if baseline is not None:
            recorded = baseline.latency_s, baseline.deviation, baseline.transferred
        elif learned and (derived := derived_reference(problem, self.gpu)) is not None:
            by_physics = derived[0].latency_s, derived[0].deviation, derived[1]
        figures = (*physical_bounds(problem, self.gpu), whole_deviation(problem), UNMEASURED, *recorded, *by_physics)
        return (baseline, None if derived is None else derived[0]), figures

    def _measure(
        self, number: int, values: Array, kind: Array, kinds: Array, scored: Array, features: Array
    ) -> tuple[Array, Array, Array]:
        """Replace the costs of a kernel's measured candidates, and scale the costs of its other candidates.

        Args:
            values, kind, kinds: arguments of `Costs`.
            scored: indices of the candidates that the trained model evaluated.
            features: features of the candidates in `scored`, (len(scored), features).

        Returns:
            New `values`, `kind` and `kinds`.
        """
        taken = self.kernels[number].taken
        assert taken is not None
        model = None if self.kernels[number].model is None else (scored, features)
        costs, self.measurements[number] = _with_measurements(Costs(values, kind, kinds), taken, model)
        return costs.values, costs.kind.astype(np.int32), costs.kinds


@lru_cache
def _limits(gpu: GPU, points: tuple[OperatingPoint, ...]) -> tuple[list[float], list[float], list[bool]]:
    """Return (power limit in watts, highest clock in hertz, whether it is the default) of each operating point."""
    clocks = [point.clock_hz or PowerModel.for_gpu(gpu).running_hz for point in points]
    return [point.limit_w(gpu) for point in points], clocks, [point.is_default(gpu) for point in points]


_PHYSICS = -2
"""Number of the physical model as the origin of a reference time. A baseline has -1, and a kernel its index."""


def _with_measurements(
    predicted: Costs,
    taken: Sequence[tuple[Array, list[MeasuredAnswer]]],
    model: tuple[Array, Array] | None,
) -> tuple[Costs, KernelMeasurements]:
    """Replace predictions by measurements. Return the costs, and the measurements with the scaled predictions.

    The operating point with the most measurements also corrects operating points without measurements.
    """
    by_point: list[Costs] = []
    scaled: list[Costs] = []
    rescalings: list[Rescaling | None] = []
    for point, (positions, rows) in enumerate(taken):
        estimated = predicted.at(point)
        if model and len(positions):
            from kernrec.recommender.estimate.correction import adapted  # Import lazily, as most users have no model.

            estimated = adapted(estimated, *model, positions, rows)
        costs, rescaling = with_measured(estimated, positions, rows)
        by_point.append(costs)
        scaled.append(rescaling.apply(estimated) if rescaling and len(taken) > 1 else estimated)
        rescalings.append(rescaling)
    anchor = max(range(len(taken)), key=lambda point: len(taken[point][0]))
    scale, there = rescalings[anchor], by_point[anchor]
    assert scale is not None
    for point, (positions, _) in enumerate(taken):
        if not len(positions):
            by_point[point] = carried_over(predicted.at(point), there, predicted.at(anchor), scale)
            scaled[point] = scale.apply(predicted.at(point))
    measured = tuple([dict(zip(positions.tolist(), rows, strict=True)) for positions, rows in taken])
    return Costs.stacked(by_point), KernelMeasurements(measured, Costs.stacked(scaled), scale)
