"""Rank configs: correct the engine's costs with trained models, apply measurements, compare with baselines.

    prediction.SpaceCosts -> laws of physics -> model correction -> measurements -> reference time -> CandidateSet

A GPU is usually measured at one operating point. At this point, measurements replace predictions. At other points they
correct the predictions. Otherwise a config that measured slow would still be recommended at every other point.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kernrec.model.prior.launch_costs import ENERGY_J, LATENCY_S
from kernrec.model.prior.power import RANDOM
from kernrec.op import Problem
from kernrec.recommender.candidates import CandidateSet, KernelCandidates, KernelMeasurements
from kernrec.recommender.estimate.costs import LATENCY, Costs, Rescaling, carried_over, prior_costs, with_measured
from kernrec.recommender.estimate.measured_rows import NOTHING, applies
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.physics import impossible, physical_bounds, possible, refuse_too_large
from kernrec.recommender.estimate.prediction import KernelCosts, Space, SpaceCosts, promising_of_each
from kernrec.recommender.estimate.reference import (
    ReferenceTime,
    beliefs,
    fastest,
    learned_reference,
    predict_references,
    reference_of,
    without_slow,
)
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Evidence, MeasuredAnswer

if TYPE_CHECKING:
    from kernrec.recommender.estimate.correction import Correction, ModelScope
    from kernrec.recommender.estimate.model_store import ModelStore

Array = np.ndarray

ROWS = 1 << 16
"""Maximum product of configs and problems evaluated together. More would be slower, because columns leave the CPU
cache."""
TOGETHER = 64
"""Maximum number of problems evaluated together. The backend model caches the times of this many problems."""
SWEPT = 64
"""Number of a kernel's fastest and lowest-energy candidates that are estimated at other operating points. On 72
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
        problem: any problem for which the tables are valid.
        points: operating points; at least one.
        evidence: database rows about the problem and GPU.
        models: trained models; None to use only the analytical model.
        whole_space: whether to estimate every config, not only the most promising configs.
        inputs: input data that the tables were made for.

    Raises:
        KernrecError: the problem does not fit the GPU's memory.
    """
    refuse_too_large(problem, tables[0].gpu)
    return next(_ranked(Space(tables, evidence, whole_space), [problem], tuple(points), models, inputs))


def candidate_sets(
    space: Space,
    problems: Sequence[Problem],
    points: Sequence[OperatingPoint],
    models: "ModelStore | None" = None,
    inputs: str = RANDOM,
) -> Iterator[CandidateSet]:
    """Yield the candidates of each problem, in order; a set may be empty.

    The arguments are those of `prediction.SpaceCosts` and `candidate_set`. Each set is bit-identical to the set of its
    problem computed separately.
    """
    size = max(1, min(TOGETHER, ROWS // sum(map(len, space.tables))))
    for first in range(0, len(problems), size):
        yield from _ranked(space, problems[first : first + size], tuple(points), models, inputs)


def _ranked(
    space: Space,
    problems: Sequence[Problem],
    points: tuple[OperatingPoint, ...],
    models: "ModelStore | None",
    inputs: str,
) -> Iterator[CandidateSet]:
    gpu, costed = space.tables[0].gpu, SpaceCosts(space, problems, points)
    limited, many = costed.limited, len(problems) > 1
    remarks = tuple[str, ...]()
    evident: dict[int, _Evident] = {}
    if costed.costed:
        evident = _evident(costed, models, space.whole)
        if len(points) > 1:
            costed.sweep([_swept(kernel, evident, costed, space.whole) for kernel in costed.costed])
    expected = prior_costs(limited)  # This copies the costs at all operating points.
    if costed.costed:
        bounds = physical_bounds(_counts(costed.costed), gpu)
        expected, remarks = possible(expected, None, limited, bounds, gpu, points)
        if remarks and many:  # Each problem has its own remarks, and most problems have none.
            middle = len(problems) // 2
            yield from _ranked(space, problems[:middle], points, models, inputs)
            yield from _ranked(space, problems[middle:], points, models, inputs)
            return
        expected = expected.with_parts([(own.kernel.part, own.correct(expected, bounds)) for own in evident.values()])
    if many:
        predict_references(problems, gpu, models, inputs)
    for number, problem in enumerate(problems):
        costs_here = expected
        if many:
            costs_here = expected.gathered(
                [_part_on(kernel, number) for kernel in costed.costed if kernel.heuristics[number] is not None]
            )
        kernels, first = [], 0
        for kernel in costed.costed:
            prediction, heuristic = kernel.predictions[number], kernel.heuristics[number]
            if heuristic is None:
                continue
            part = slice(first, first + len(prediction.rows))
            first = part.stop
            corrected = evident.get(prediction.number)
            more = (None, None, remarks) if corrected is None else corrected.on_problem(number, remarks)
            kernels.append(KernelCandidates(prediction, heuristic, part, limited, costs_here, *more))
        baseline = reference_of(problem, gpu, models, inputs)
        if kernels:
            costs_here = beside_reference(kernels, costs_here, baseline, points[0])
        others = space.evidence.foreign
        foreign = [row for row in others if applies(row, gpu, points[0]) and not impossible(row, problem, gpu)]
        considered = [kernel.predictions[number] for kernel in costed.kernels]
        yield CandidateSet(problem, gpu, points, kernels, considered, costs_here, foreign)


def _part_on(kernel: KernelCosts, number: int) -> slice:
    """Return the slice of all candidates that belongs to a kernel on one problem."""
    start, end = kernel.starts[number : number + 2]
    return slice(kernel.part.start + start, kernel.part.start + end)


def _counts(kernels: Sequence[KernelCosts]) -> list[tuple[Problem, int]]:
    """Return, for each consecutive run of candidates of one problem, the problem and the run's length."""
    first = kernels[0].predictions
    if len(first) == 1:
        return [(first[0].on_problem.problem, kernels[-1].part.stop - kernels[0].part.start)]
    return [
        (prediction.on_problem.problem, end - start)
        for kernel in kernels
        for prediction, (start, end) in zip(kernel.predictions, pairwise(kernel.starts), strict=True)
    ]


def _evident(costed: SpaceCosts, models: "ModelStore | None", whole: bool) -> "dict[int, _Evident]":
    """Return the kernels that have a trained model or measurements, by the number of the kernel."""
    evident: dict[int, _Evident] = {}
    for kernel in costed.costed:
        table, scope = kernel.whole.table, None
        if models is not None:
            scope = models.scope(table.kernel.op, table.kernel, table.gpu, table.space.dtype)
        if scope is not None or kernel.whole.measured[0] is not NOTHING:
            evident[kernel.whole.number] = _Evident(kernel, costed, scope, whole)
    return evident


def _swept(kernel: KernelCosts, evident: "Mapping[int, _Evident]", costed: SpaceCosts, whole: bool) -> Array | None:
    """Return the positions of the candidates to estimate at the other operating points; None for all.

    Measurements correct the predictions of all configs, so a measured kernel needs all of them.
    """
    own = evident.get(kernel.whole.number)
    if whole or (own is not None and own.most):
        return None
    values = costed.limited.costs[LATENCY_S, 0, kernel.part], costed.limited.costs[ENERGY_J, 0, kernel.part]
    if own is not None and own.correction is not None:
        values = own.correction.corrected_values(*values)
    return promising_of_each(values, kernel.starts, SWEPT).nonzero()[0]


_NONE_MEASURED: tuple[Array, list[MeasuredAnswer]] = (np.empty(0, dtype=np.int64), [])


class _Evident:
    """Kernel with a trained model or with measurements, which correct the analytical model's costs."""

    def __init__(self, kernel: KernelCosts, costed: SpaceCosts, scope: "ModelScope | None", whole: bool) -> None:
        self.kernel, self._costed = kernel, costed
        self._taken, self.most = [_NONE_MEASURED] * len(costed.points), 0
        """Measured positions at each operating point, and their measurements; maximum number of these at a point."""
        if kernel.whole.measured[0] is not NOTHING:
            self._taken = [measured.at(kernel.whole.rows) for measured in kernel.whole.measured]
            self.most = max([len(positions) for positions, _ in self._taken])
        self.correction: Correction | None = None
        self._measurements: KernelMeasurements | None = None
        self._remarks: tuple[str, ...] = ()
        if scope is not None:
            from kernrec.recommender.estimate import correction

            first, gpu = costed.limited.costs[:, 0, kernel.part], kernel.whole.table.gpu
            # With enough measurements, configs that the analytical model ranks low may be promising. Trees for all
            # configs take milliseconds.
            if whole or len(self._taken[0][0]) >= correction.FEWEST:
                scored = np.arange(len(kernel.whole.rows))
            else:
                mask = promising_of_each((first[LATENCY_S], first[ENERGY_J]), kernel.starts, correction.SCORED)
                mask[self._taken[0][0]] = True
                scored = mask.nonzero()[0]
            # Use the default operating point, so that costs do not depend on how an operating point was requested.
            default = first if costed.points[0].is_default(gpu) else kernel.whole.limited().costs
            self.correction = correction.Correction.of(scope, kernel.whole, default, scored, kernel.starts)

    def correct(self, prior: Costs, bounds: Array) -> Costs:
        """Return the corrected costs of this kernel's candidates, (points, C).

        Args:
            prior: the analytical model's costs of all kernels.
            bounds: physical bounds of all kernels' candidates, (2, candidates).
        """
        part, costed = self.kernel.part, self._costed
        before = prior.part(part)
        expected = before if self.correction is None else self.correction.correct(before)
        if self.most:
            expected, self._measurements = _with_measurements(expected, self._taken, self.correction)
        if expected is not before:
            there = [positions for positions, _ in self._taken] if self.most else ()
            limited, gpu = costed.limited.part(part), self.kernel.whole.table.gpu
            expected, self._remarks = possible(expected, before, limited, bounds[:, part], gpu, costed.points, there)
        return expected

    def on_problem(
        self, number: int, remarks: tuple[str, ...]
    ) -> "tuple[KernelMeasurements | None, ModelScope | None, tuple[str, ...]]":
        """Return measurements, model and notes of the candidates on one problem."""
        scope = None if self.correction is None else self.correction.scopes[number].after(self.most)
        return self._measurements, scope, (*remarks, *self._remarks)


def beside_reference(
    kernels: Sequence[KernelCandidates], costs: Costs, baseline: ReferenceTime | None, first: OperatingPoint
) -> Costs:
    """Shrink the lead of one problem's kernels over the recorded times, store the result in them, and return the costs.

    Recorded times are the fastest baseline, and the Triton kernels that a model learned on this GPU. Kernels with
    measurements are already on the measured scale. Times are compared at the default power limit and clock, so a
    config's cost does not depend on how its operating point was requested.
    """
    problem, gpu = kernels[0].prediction.on_problem.problem, kernels[0].table.gpu
    latency_s = costs.values[LATENCY, 0]
    if not first.is_default(gpu):
        latency_s = latency_s * np.concatenate([kernel.to_default for kernel in kernels])
    references, unchecked, best_s = [baseline] if baseline else [], [], []
    for kernel in kernels:
        of_kernel = latency_s[kernel.part]
        best = int(of_kernel.argmin())
        if not kernel.ran:
            unchecked.append(kernel)
            best_s.append(of_kernel.item(best))
        elif kernel.of_card and kernel.table.kernel.triton is not None:
            latency = costs.latency.item((0, kernel.part.start + best))
            references.append(learned_reference(kernel.table.kernel.name, of_kernel.item(best), latency))
    if baseline is None and references:
        references = without_slow(references, problem, gpu)
    parts = []
    for kernel, own in zip(unchecked, beliefs(problem, best_s, fastest(references)), strict=True):
        kernel.belief = own
        if own.lead:
            parts.append((kernel.part, own.believed(costs.part(kernel.part))))
    costs = costs.with_parts(parts)
    for kernel in kernels:
        kernel.all_costs = costs
    return costs


def _with_measurements(
    predicted: Costs,
    taken: Sequence[tuple[Array, list[MeasuredAnswer]]],
    correction: "Correction | None",
) -> tuple[Costs, KernelMeasurements]:
    """Return the costs at each operating point, if at least one point has measurements.

    A point without measurements takes its scale from the point with the most measured configs. If several have equally
    many, the first point counts.
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
