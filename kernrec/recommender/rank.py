"""Rank configs: correct the engine's costs with trained models, apply measurements, compare with baselines.

    engine.costs -> laws of physics -> model correction -> measurements -> reference time -> CandidateSet

A GPU is usually measured at one operating point. Measurements count directly at this point. At other points they
correct the predictions. Otherwise a config that measured slow would still be recommended at every other point.
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
    without_slow,
    yardstick_of,
)
from kernrec.store import Evidence, MeasuredAnswer

if TYPE_CHECKING:
    from kernrec.recommender.estimate.correction import Correction, ModelScope
    from kernrec.recommender.estimate.model_store import ModelStore

Array = np.ndarray

ROWS = 1 << 16
"""Maximum number of configs times problems evaluated together. More take longer, because columns leave the CPU
cache."""
TOGETHER = 64
"""Maximum number of problems evaluated together. The backend model caches the times of this many."""
SWEPT = 64
"""Number of a kernel's candidates estimated at other operating points: the fastest and those of lowest energy. On 72
problems of four ops, this missed the lowest energy once, by 1.3 %."""


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
        tables: static tables of the kernels that implement the problem on a GPU; at least one.
        problem: any problem that the tables hold for.
        points: operating points; at least one.
        evidence: database rows about the problem and GPU.
        models: trained models; None to use only the analytical model.
        whole_space: estimate every config, not only the most promising ones.
        inputs: input data that the tables were made for.

    Raises:
        KernrecError: the problem does not fit the GPU's memory.
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

    The arguments are those of `engine.costs` and `candidate_set`. Each set is bit-identical to the set of its problem
    computed separately.
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
        if remarks and len(problems) > 1:  # each problem has its own remarks
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
    """Return the problem of each run of candidates, and the length of the run."""
    if len(kernels[0].runnable) == 1:
        return [(kernels[0].runnable[0].on_problem.problem, sum(len(kernel.estimated) for kernel in kernels))]
    return [
        (runnable.on_problem.problem, end - start)
        for kernel in kernels
        for runnable, (start, end) in zip(kernel.runnable, pairwise(kernel.ends), strict=True)
    ]


class _Kernel:
    """Candidates of one kernel on all problems, from the engine's costs to the final ones."""

    def __init__(self, kernel: KernelCosts, costed: SpaceCosts, models: "ModelStore | None", whole: bool) -> None:
        self.costs, self._points, self._limited, self._whole = kernel, costed.points, costed.limited, whole
        self._first = first = costed.limited.at(0).part(kernel.part)
        self._taken = [measured.at(kernel.estimated) for measured in kernel.runnable[0].measured]
        """Measured positions at each operating point, and their measurements."""
        self._most = max(len(positions) for positions, _ in self._taken)
        table = kernel.table
        scope = models.scope(table.kernel.op, table.kernel, table.gpu, table.space.dtype) if models else None
        self._correction: Correction | None = None
        self._scopes: Sequence[ModelScope | None] = [None] * len(kernel.runnable)
        if scope is not None:
            from kernrec.recommender.estimate import correction

            # With enough measurements, configs that the analytical model ranks low may be promising. Trees for all
            # configs take milliseconds.
            if whole or len(self._taken[0][0]) >= correction.FEWEST:
                scored = np.arange(len(kernel.estimated))
            else:
                mask = promising_of_each((first.latency_s, first.energy_j), kernel.ends, correction.SCORED)
                mask[self._taken[0][0]] = True
                scored = mask.nonzero()[0]
            # At the default operating point, so that costs do not depend on how an operating point was requested.
            default = first if costed.points[0].is_default(table.gpu) else kernel.prediction.limited()
            self._correction = correction.Correction.of(scope, kernel.prediction, default, scored, kernel.ends)
            self._scopes = [each.after(self._most) for each in self._correction.scopes]

    def swept(self) -> Array | None:
        """Return the positions to estimate at further operating points; None for all.

        Measurements correct the predictions of all configs, so a measured kernel needs all of them.
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
            prior: costs of the kernel's candidates by the analytical model, (points, C).
            remarks: notes on these costs.
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
    """Return the kernels of one problem, with their lead over the recorded times shrunk.

    Recorded times are the fastest baseline, and the Triton kernels that a model learned on this GPU. Kernels with
    measurements are already on the measured scale. All are compared at the default power limit and clock. So a config's
    cost does not depend on how its operating point was requested.
    """
    default = all(first.is_default(kernel.table.gpu) for kernel in kernels)
    yardsticks = [line] if line else []
    for kernel in kernels:
        if kernel.of_card and kernel.table.kernel.triton is not None:
            latency = kernel.costs.latency.at(0).scaled(1.0 if default else kernel.to_default)
            yardsticks.append(learned_yardstick(kernel.table.kernel.name, latency))
    if line is None and yardsticks:
        yardsticks = without_slow(yardsticks, kernels[0].runnable.on_problem.problem, kernels[0].table.gpu)
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
    """Return the costs at each operating point, if at least one point has measurements.

    A point without measurements takes its scale from the point with the most measured configs. Of equals, the first
    counts.
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
