"""The candidates of one kernel: the configs that can run a problem, and those that are estimated, with their costs.

    runnable configs -> shortlist -> prediction -> costs at each operating point

A card is measured at one operating point as a rule. Measurements there count there as measured; at the other points
they correct the predictions, or a config that turned out slow would be recommended at every point but that one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kernrec.kernel import ProblemSpace
from kernrec.model.prior.launch_costs import LimitedCosts
from kernrec.op import Problem
from kernrec.recommender.estimate.costs import Costs, Rescaling, carried_over, prior_costs, promising, with_measured
from kernrec.recommender.estimate.measured_rows import NOTHING, MeasuredRows, measured_rows
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.physics import possible
from kernrec.recommender.estimate.prediction import Prediction, predict_all
from kernrec.recommender.estimate.shortlist import shortlist
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.estimate.yardstick import (
    UNCHECKED,
    Belief,
    Yardstick,
    believed,
    caution,
    fastest,
    learned_yardstick,
    unsure,
)
from kernrec.store import Evidence, MeasuredAnswer
from kernrec.util.light_dataclass import dataclass
from kernrec.util.light_property import cached_property

if TYPE_CHECKING:
    from kernrec.recommender.estimate.correction import Correction, ModelScope
    from kernrec.recommender.estimate.model_store import ModelStore

Array = np.ndarray

SWEPT = 64
"""Candidates of a kernel that are estimated at other operating points than the first: the fastest and the most frugal
there. Of 72 problems of four ops the least energy was missed on one, by 1.3 %."""


@dataclass(frozen=True, eq=False)
class RunnableConfigs:
    """The configs of one kernel that can run a problem."""

    table: StaticTable
    on_problem: ProblemSpace
    """The space of the table on the problem."""
    measured: tuple[MeasuredRows, ...]
    rows: Array
    """Rows of the space, ascending; configs that failed when they were measured are left out."""
    unprofiled: tuple[MeasuredAnswer, ...] = ()
    """Measured at the first point, but without a profile: they cannot be compared with the others."""

    @classmethod
    def of(
        cls, table: StaticTable, problem: Problem, points: Sequence[OperatingPoint], evidence: Evidence
    ) -> "RunnableConfigs":
        """Those of a kernel's table on a problem, in the light of the databases' rows."""
        on_problem = table.space.at(problem)
        measured = measured_rows(table.space, on_problem, table.gpu, evidence, points)
        first = measured[0]
        if first is NOTHING:
            return cls(table, on_problem, measured, table.runnable(on_problem))
        everywhere = first.rows
        if any(len(other.rows) for other in measured[1:]):
            everywhere = np.unique(np.concatenate([m.rows for m in measured]))
        rows = table.runnable(on_problem, everywhere)
        unprofiled = [m for row, m in zip(first.rows, first.measured, strict=True) if row not in rows]
        if len(first.failed):
            rows = np.setdiff1d(rows, first.failed, assume_unique=True)
        return cls(table, on_problem, measured, rows, tuple(unprofiled))

    @property
    def sampled_blocks(self) -> tuple[int, int]:
        """How many blocks of the first launch were emulated, least and most over the configs; 0 for probed profiles."""
        if not self.table.kernel.sampled:
            return 0, 0
        profiles = self.table.launches[0].profiles
        blocks = profiles.counts[:, profiles.metrics.index("blocks.sampled"), 0]
        return int(blocks.min()), int(blocks.max())


@dataclass(frozen=True, eq=False)
class KernelMeasurements:
    """The measurements of a kernel's candidates, and the predictions that they correct."""

    measured: tuple[dict[int, MeasuredAnswer], ...]
    """At each operating point by position of the candidate."""
    predicted: Costs
    """The costs as if none of the candidates had been measured, on the scale of the measurements; (points, C)."""
    rescaling: Rescaling
    """The factors by which predictions were put on that scale."""


@dataclass(frozen=True, eq=False)
class KernelCandidates:
    """The candidates of one kernel that are estimated, with their costs at each operating point, (points, C)."""

    runnable: RunnableConfigs
    heuristic: int
    """Position of the candidate that the occupancy heuristic picks."""
    prediction: Prediction
    limited: LimitedCosts
    costs: Costs
    measurements: KernelMeasurements | None
    """None where no candidate was measured."""
    scope: "ModelScope | None"
    """The model that corrects the prior; None where none applies."""
    belief: Belief = UNCHECKED
    """The belief about the kernel's lead over the recorded times of the problem."""
    remarks: tuple[str, ...] = ()
    """Lines about costs that `physics.possible` refused."""

    @property
    def to_default(self) -> Array:
        """The prior's latency at the default power limit and clock over that at the first operating point, (C,)."""
        return np.asarray(self.prediction.limited().latency_s / self.limited.latency_s[0])

    @property
    def of_card(self) -> bool:
        """Whether the costs are those of a model that learned the kernel on this card, nothing measured here."""
        return self.measurements is None and self.scope is not None and self.scope.gpu_known and self.scope.kernel_known

    @property
    def ran(self) -> bool:
        """Whether something is known of the kernel's configs from this very card."""
        return self.measurements is not None or self.of_card

    @cached_property
    def caution(self) -> Array:
        """The factor by which each config's costs count more than expected beside one that somebody ran, (C,)."""
        if self.measurements is None and self.scope is None:
            return np.full(len(self.rows), unsure(self.belief.deviation))
        factor = caution(self.costs.latency.at(0), self.belief.deviation, self.of_card, self.measurements is not None)
        for measured in self.measurements.measured if self.measurements else ():
            factor[list(measured)] = 1.0
        return factor

    @property
    def table(self) -> StaticTable:
        """The static table of the kernel."""
        return self.runnable.table

    @property
    def rows(self) -> Array:
        """Rows of the space that are estimated, ascending."""
        return self.prediction.rows

    def at(self, point: int) -> "KernelCandidates":
        """The candidates at one of the operating points alone."""
        alone, there = slice(point, point + 1), self.measurements
        if there is not None:
            there = KernelMeasurements(there.measured[alone], there.predicted.at(alone), there.rescaling)
        return replace(self, limited=self.limited.at(alone), costs=self.costs.at(alone), measurements=there)

    def with_belief(self, belief: Belief) -> "KernelCandidates":
        """The candidates of a kernel that nobody ran, with what is believed of their lead."""
        costs = believed(self.costs, belief)
        return KernelCandidates(
            self.runnable, self.heuristic, self.prediction, self.limited, costs, None, self.scope, belief, self.remarks
        )

    def measured(self, point: int) -> Mapping[int, MeasuredAnswer]:
        """The measurements at an operating point, by position of the candidate."""
        return self.measurements.measured[point] if self.measurements else {}

    def config(self, position: int) -> dict[str, int]:
        """The config of the candidate at this position."""
        return self.table.config(self.rows.item(position))


def scope_of(table: StaticTable, models: "ModelStore | None") -> "ModelScope | None":
    """Return the trained model that corrects a kernel's estimates; None if there is none."""
    return models.scope(table.kernel.op, table.kernel, table.gpu, table.space.dtype) if models else None


def beside_yardstick(
    kernels: Sequence[KernelCandidates], line: Yardstick | None, first: OperatingPoint
) -> list[KernelCandidates]:
    """The kernels of one problem, their leads over what was recorded of it cut to what is believed.

    Recorded are lines of stacks, of which the fastest is given, and the kernels in Triton that a model learned on this
    very card. Kernels of which something was measured here are on the scale of that already. All are compared at the
    default power limit and clock, so that a config costs the same however its operating point was asked for.
    """
    default = all(first.is_default(kernel.table.gpu) for kernel in kernels)
    yardsticks = [line] if line else []
    for kernel in kernels:
        if kernel.of_card and kernel.table.kernel.triton is not None:
            latency = kernel.costs.latency.at(0).scaled(1.0 if default else kernel.to_default)
            yardsticks.append(learned_yardstick(kernel.table.kernel.name, latency))
    yardstick = fastest(yardsticks)
    result = []
    for kernel in kernels:
        if not kernel.ran:
            latency_s = kernel.costs.latency.value[0] * (1.0 if default else kernel.to_default)
            belief = Belief.of(kernel.runnable.on_problem.problem, float(latency_s.min()), yardstick)
            kernel = kernel.with_belief(belief)
        result.append(kernel)
    return result


def estimate_kernels(
    runnable: Sequence[RunnableConfigs],
    points: Sequence[OperatingPoint],
    scopes: "Sequence[ModelScope | None]",
    whole_space: bool,
) -> list[KernelCandidates]:
    """Estimates the configs of kernels: all of them, or the most promising and those that were measured.

    Args:
        runnable: the configs of each kernel that has at least one.
        points: a model corrects the prior at the first one, and by as much at the others.
        scopes: the trained model that applies to each of these kernels, if there is one.
        whole_space: False leaves out configs that are not on the shortlist, and asks the model about the most
            promising ones alone.
    """
    heuristics = [each.table.occupancy_choice(each.on_problem, each.rows) for each in runnable]
    estimated = [
        each.rows if whole_space else _shortlisted(each, heuristic)
        for each, heuristic in zip(runnable, heuristics, strict=True)
    ]
    predictions = predict_all(
        [(each.table, each.on_problem, rows) for each, rows in zip(runnable, estimated, strict=True)]
    )
    limited = predictions.limited_at_first(points)
    first = limited.at(slice(0, 1))
    parts = [slice(*ends) for ends in pairwise(predictions.starts)]
    kernels = [
        _Estimation(each, prediction, first.part(part), scope, whole_space, points)
        for each, prediction, part, scope in zip(runnable, predictions.kernels, parts, scopes, strict=True)
    ]
    if len(points) > 1:
        # Measurements correct the predictions of all configs, so there all of them are estimated.
        swept = [None if whole_space or kernel.any_measured else kernel.promising(SWEPT) for kernel in kernels]
        predictions.limit_at_others(limited, points, swept)
    problem, gpu = runnable[0].on_problem.problem, runnable[0].table.gpu
    costs, remarks = possible(prior_costs(limited), None, limited, [(problem, predictions.starts[-1])], gpu, points)
    return [
        kernel.candidates(
            int(kernel.prediction.rows.searchsorted(heuristic)), limited.part(part), costs.part(part), remarks
        )
        for kernel, heuristic, part in zip(kernels, heuristics, parts, strict=True)
    ]


class _Estimation:
    """A kernel's candidates on the way from the prior's prediction to their costs."""

    def __init__(
        self,
        runnable: RunnableConfigs,
        prediction: Prediction,
        first: LimitedCosts,
        scope: "ModelScope | None",
        whole_space: bool,
        points: Sequence[OperatingPoint],
    ) -> None:
        """With the corrections of the kernel's model, if there is one.

        first: the prior's prediction at the first operating point, (1, C).
        """
        self.runnable, self.prediction, self.first, self.scope, self.points = runnable, prediction, first, scope, points
        rows = prediction.rows
        self.taken = [measured.at(rows) for measured in runnable.measured]
        """At each operating point the positions that were measured, and their measurements."""
        self.any_measured = max(len(positions) for positions, _ in self.taken) > 0
        self.correction: Correction | None = None
        if scope is not None:
            from kernrec.recommender.estimate import correction

            alone = first.at(0)
            scored = np.arange(len(rows)) if whole_space else correction.worth_scoring(alone, self.taken[0][0])
            self.correction = correction.Correction.of(scope, prediction, alone, scored, (0, len(rows)))
            self.scope = self.correction.scopes[0].after(max(len(positions) for positions, _ in self.taken))

    def promising(self, count: int) -> Array | None:
        """The positions of the most promising candidates at the first operating point; None for all."""
        if len(self.prediction.rows) <= count:
            return None
        latency_s, energy_j = self.first.latency_s[0], self.first.energy_j[0]
        if self.correction is not None:
            latency_s, energy_j = self.correction.corrected_values(latency_s, energy_j)
        return promising(latency_s, energy_j, count)

    def candidates(
        self, heuristic: int, limited: LimitedCosts, prior: Costs, remarks: tuple[str, ...]
    ) -> KernelCandidates:
        """The candidates with their costs, from the prior's at all operating points, and lines about these."""
        costs, measurements = prior if self.correction is None else self.correction.correct(prior), None
        if self.any_measured:
            costs, measurements = _with_measurements(costs, self.taken, self.correction)
        if costs is not prior:
            own = [(self.runnable.on_problem.problem, len(self.prediction.rows))]
            there = [positions for positions, _ in self.taken]
            costs, more = possible(costs, prior, limited, own, self.runnable.table.gpu, self.points, there)
            remarks += more
        return KernelCandidates(
            self.runnable, heuristic, self.prediction, limited, costs, measurements, self.scope, remarks=remarks
        )


def _shortlisted(runnable: RunnableConfigs, heuristic: int) -> Array:
    """The rows worth a full estimate: the shortlist, measured rows, and the pick of the occupancy heuristic."""
    rows = shortlist(runnable.table, runnable.on_problem, runnable.rows)
    for measured in runnable.measured:
        if measured is not NOTHING and len(measured.rows):
            rows = np.union1d(rows, np.intersect1d(measured.rows, runnable.rows, assume_unique=True))
    place = int(rows.searchsorted(heuristic))
    if place == len(rows) or rows[place] != heuristic:
        rows = np.concatenate([rows[:place], [heuristic], rows[place:]])
    return rows


def _with_measurements(
    predicted: Costs,
    taken: Sequence[tuple[Array, list[MeasuredAnswer]]],
    correction: "Correction | None",
) -> tuple[Costs, KernelMeasurements]:
    """The costs at each operating point where something was measured at one of them at least.

    A point at which nothing was measured takes its scale from the point with the most measured configs, the first of
    them where several have as many.
    """
    by_point: list[Costs] = []
    scaled: list[Costs] = []
    rescalings: list[Rescaling | None] = []
    for point, (positions, rows) in enumerate(taken):
        estimated = predicted.at(point)
        adapted = correction.adapted(estimated, positions, rows) if correction and len(positions) else estimated
        costs, rescaling = with_measured(adapted, positions, rows)
        by_point.append(costs)
        scaled.append(rescaling.apply(adapted) if rescaling and len(taken) > 1 else adapted)
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
