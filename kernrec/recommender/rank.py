"""Ranking: the engine's costs, corrected by trained models, replaced by measurements, and set beside baselines.

    engine.costs -> laws of physics -> model correction -> measurements -> yardstick -> CandidateSet

A GPU is measured at one operating point as a rule. Measurements count there as measured. At the other points they
correct the predictions: otherwise a config that turned out slow would be recommended at every point but that one.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kernrec.model.prior.power import RANDOM
from kernrec.op import Problem
from kernrec.recommender.candidates import CandidateSet, KernelCandidates, KernelMeasurements
from kernrec.recommender.estimate.costs import Costs, Rescaling, carried_over, prior_costs, with_measured
from kernrec.recommender.estimate.engine import KernelCosts, Space, SpaceCosts, costs, promising_of_each
from kernrec.recommender.estimate.measured_rows import applies
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.physics import impossible, possible, refuse_too_large
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.estimate.yardstick import (
    UNCHECKED,
    Belief,
    Yardstick,
    fastest,
    learned_yardstick,
    predict_yardsticks,
    yardstick_of,
)
from kernrec.store import Evidence, MeasuredAnswer

if TYPE_CHECKING:
    from kernrec.recommender.estimate.correction import Correction, ModelScope
    from kernrec.recommender.estimate.model_store import ModelStore

Array = np.ndarray

ROWS = 1 << 16
"""Configs times problems that are laid side by side: more take longer, because columns leave the processor's cache."""
TOGETHER = 64
"""The most problems that are laid side by side: the model of stacks remembers the times of as many."""
SWEPT = 64
"""Candidates of a kernel that are estimated at other operating points than the first: the fastest and the most frugal
there. Of 72 problems of four ops the least energy was missed on one, by 1.3 %."""


def candidate_set(
    tables: Sequence[StaticTable],
    problem: Problem,
    points: Sequence[OperatingPoint],
    evidence: Evidence,
    models: "ModelStore | None" = None,
    whole_space: bool = False,
    inputs: str = RANDOM,
) -> CandidateSet:
    """Return the candidates of one problem; the set may be empty.

    Args:
        tables: of the kernels that implement the problem on a GPU, at least one.
        problem: any that the tables hold for.
        points: at least one.
        evidence: the rows of databases about the problem and GPU.
        models: where trained models of the kernels are; None: only the prior predicts.
        whole_space: whether every config is estimated, not only the most promising ones.
        inputs: those that the tables were made for.

    Raises:
        KernrecError: the GPU's memory does not hold the problem.
    """
    refuse_too_large(problem, tables[0].gpu)
    return next(candidate_sets(Space(tables, evidence, whole_space), [problem], points, models, inputs))


def candidate_sets(
    space: Space,
    problems: Sequence[Problem],
    points: Sequence[OperatingPoint],
    models: "ModelStore | None" = None,
    inputs: str = RANDOM,
) -> Iterator[CandidateSet]:
    """Yield the candidates of each problem, in order; a set may be empty.

    The arguments are those of `engine.costs` and `candidate_set`. Each set is equal, to the last bit, to that of its
    problem alone.
    """
    size = max(1, min(TOGETHER, ROWS // sum(len(table.space) for table in space.tables)))
    for first in range(0, len(problems), size):
        yield from _ranked(space, problems[first : first + size], tuple(points), models, inputs)


def _ranked(
    space: Space,
    problems: Sequence[Problem],
    points: tuple[OperatingPoint, ...],
    models: "ModelStore | None",
    inputs: str,
) -> Iterator[CandidateSet]:
    gpu, costed = space.tables[0].gpu, costs(space, problems, points)
    own: list[list[KernelCandidates]] = [[] for _ in problems]
    if costed.costed:
        kernels = [_Kernel(each, costed, models, space.whole) for each in costed.costed]
        if len(points) > 1:
            costed.sweep([kernel.swept() for kernel in kernels])
        prior, remarks = possible(
            prior_costs(costed.limited), None, costed.limited, _counts(costed.costed), gpu, points
        )
        if remarks and len(problems) > 1:  # each problem has remarks of its own
            for problem in problems:
                yield from _ranked(space, [problem], points, models, inputs)
            return
        for kernel in kernels:
            for number, candidates in kernel.candidates(prior.part(kernel.costs.part), remarks):
                own[number].append(candidates)
    if len(problems) > 1:
        predict_yardsticks(problems, gpu, models, inputs)
    for number, problem in enumerate(problems):
        beside = beside_yardstick(own[number], yardstick_of(problem, gpu, models, inputs), points[0])
        foreign = tuple(
            row for row in space.evidence.foreign if applies(row, gpu, points[0]) and not impossible(row, problem, gpu)
        )
        considered = tuple([kernel.runnable[number] for kernel in costed.kernels])
        yield CandidateSet(problem, gpu, points, tuple(beside), considered, foreign)


def _counts(kernels: Sequence[KernelCosts]) -> list[tuple[Problem, int]]:
    """The problem of each run of candidates, and how long the run is."""
    if len(kernels[0].runnable) == 1:
        return [(kernels[0].runnable[0].on_problem.problem, sum(len(kernel.estimated) for kernel in kernels))]
    return [
        (runnable.on_problem.problem, end - start)
        for kernel in kernels
        for runnable, (start, end) in zip(kernel.runnable, pairwise(kernel.ends), strict=True)
    ]


class _Kernel:
    """The candidates of one kernel on all problems, from the engine's costs to their own."""

    def __init__(self, kernel: KernelCosts, costed: SpaceCosts, models: "ModelStore | None", whole: bool) -> None:
        self.costs, self._points, self._limited, self._whole = kernel, costed.points, costed.limited, whole
        self._first = first = costed.limited.at(0).part(kernel.part)
        self._taken = [measured.at(kernel.estimated) for measured in kernel.runnable[0].measured]
        """The positions measured at each operating point, and their measurements."""
        self._most = max(len(positions) for positions, _ in self._taken)
        table = kernel.table
        scope = models.scope(table.kernel.op, table.kernel, table.gpu, table.space.dtype) if models else None
        self._correction: Correction | None = None
        self._scopes: Sequence[ModelScope | None] = [None] * len(kernel.runnable)
        if scope is not None:
            from kernrec.recommender.estimate import correction

            # With enough measurements, others may be promising than the prior thinks: trees for all take milliseconds.
            if whole or len(self._taken[0][0]) >= correction.FEWEST:
                scored = np.arange(len(kernel.estimated))
            else:
                mask = promising_of_each((first.latency_s, first.energy_j), kernel.ends, correction.SCORED)
                mask[self._taken[0][0]] = True
                scored = mask.nonzero()[0]
            self._correction = correction.Correction.of(scope, kernel.prediction, first, scored, kernel.ends)
            self._scopes = [each.after(self._most) for each in self._correction.scopes]

    def swept(self) -> Array | None:
        """The positions that are estimated at other operating points than the first; None for all.

        Measurements correct the predictions of all configs, so there all of them are estimated.
        """
        if self._whole or self._most:
            return None
        values = self._first.latency_s, self._first.energy_j
        if self._correction is not None:
            values = self._correction.corrected_values(*values)
        return promising_of_each(values, self.costs.ends, SWEPT).nonzero()[0]

    def candidates(self, prior: Costs, remarks: tuple[str, ...]) -> Iterator[tuple[int, KernelCandidates]]:
        """Yield the number of each problem that has candidates, and its candidates with their costs.

        Args:
            prior: the analytical model's costs of the kernel's candidates, (points, C).
            remarks: lines about them.
        """
        kernel, limited = self.costs, self._limited.part(self.costs.part)
        expected, measurements = prior if self._correction is None else self._correction.correct(prior), None
        if self._most:
            expected, measurements = _with_measurements(expected, self._taken, self._correction)
        if expected is not prior:
            there = [positions for positions, _ in self._taken]
            gpu = kernel.table.gpu
            expected, more = possible(expected, prior, limited, _counts([kernel]), gpu, self._points, there)
            remarks += more
        predictions = kernel.prediction.by_problem(kernel.ends, [each.on_problem for each in kernel.runnable])
        each = zip(pairwise(kernel.ends), predictions, kernel.heuristics, strict=True)
        for number, ((start, end), prediction, heuristic) in enumerate(each):
            if heuristic is not None:
                part, scope = slice(start, end), self._scopes[number]
                own = prediction, limited.part(part), expected.part(part), measurements, scope, UNCHECKED, remarks
                yield number, KernelCandidates(kernel.runnable[number], heuristic, *own)


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
