"""The candidate sets of many problems that nobody measured, estimated side by side.

The expressions of a kernel, the prior, power limits and trained models take the candidates of all problems in one pass
each; a set has its part of the arrays. So each is, to the last bit, that of `candidate_set` for its problem, whose
steps these are.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from kernrec.kernel.many_problems import ManyProblems
from kernrec.model.prior.launch_costs import LimitedCosts
from kernrec.model.prior.power import RANDOM
from kernrec.op import Problem
from kernrec.recommender.candidate_set import CandidateSet
from kernrec.recommender.estimate.costs import Costs, prior_costs, promising
from kernrec.recommender.estimate.measured_rows import NOTHING
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.physics import possible
from kernrec.recommender.estimate.prediction import Prediction, predict_all
from kernrec.recommender.estimate.shortlist import SHORTLIST, quick_costs
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.estimate.yardstick import UNCHECKED, predict_yardsticks, yardstick_of
from kernrec.recommender.kernel_candidates import SWEPT, KernelCandidates, RunnableConfigs, beside_yardstick, scope_of

if TYPE_CHECKING:
    from kernrec.recommender.estimate.correction import Correction, ModelScope
    from kernrec.recommender.estimate.model_store import ModelStore

Array = np.ndarray

ROWS = 1 << 16
"""Configs times problems that are laid side by side: more take longer, because columns leave the processor's cache."""
TOGETHER = 64
"""Problems that are laid side by side at most: the model of stacks remembers the times of as many."""


def candidate_sets(
    tables: Sequence[StaticTable],
    problems: Sequence[Problem],
    points: Sequence[OperatingPoint],
    models: "ModelStore | None" = None,
    inputs: str = RANDOM,
) -> Iterator[CandidateSet]:
    """The candidate set of each problem, in order; one may be empty.

    Args:
        tables: of the kernels that implement the problems on a GPU; all `of_any_problem`.
        problems: of one op, data type and layout, without rows in the databases.
        points: operating points, as for `candidate_set`, like `models` and `inputs`.
    """
    size = max(1, min(TOGETHER, ROWS // sum(len(table.space) for table in tables)))
    for first in range(0, len(problems), size):
        yield from _Together(tables, problems[first : first + size], points, models, inputs).sets()


class _Together:
    """The candidates of some problems."""

    def __init__(
        self,
        tables: Sequence[StaticTable],
        problems: Sequence[Problem],
        points: Sequence[OperatingPoint],
        models: "ModelStore | None",
        inputs: str,
    ) -> None:
        self._tables, self._problems, self._points = tables, problems, tuple(points)
        self._models, self._inputs = models, inputs
        self._of_kernels = [_OfKernel(table, problems, points) for table in tables]

    def sets(self) -> Iterator[CandidateSet]:
        """Of each problem, in order."""
        gpu = self._tables[0].gpu
        kernels: list[list[KernelCandidates]] = [[] for _ in self._problems]
        numbers = [number for number, each in enumerate(self._of_kernels) if len(each.rows)]
        if numbers:
            self._estimate(numbers, kernels)
        predict_yardsticks(self._problems, gpu, self._models, self._inputs)
        for number, problem in enumerate(self._problems):
            considered = tuple([each.runnable[number] for each in self._of_kernels])
            yardstick = yardstick_of(problem, gpu, self._models, self._inputs)
            own = beside_yardstick(kernels[number], yardstick, self._points[0])
            yield CandidateSet(problem, gpu, self._points, tuple(own), considered)

    def _estimate(self, numbers: Sequence[int], kernels: list[list[KernelCandidates]]) -> None:
        """Adds to the kernels of each problem their candidates, in the order of the tables."""
        points, models = self._points, self._models
        each = [self._of_kernels[number] for number in numbers]
        predictions = predict_all([(kernel.table, kernel.on_problems, kernel.estimated) for kernel in each])
        limited = predictions.limited_at_first(points)
        first = limited.at(slice(0, 1))
        parts = [slice(*ends) for ends in pairwise(predictions.starts)]
        for kernel, prediction, part in zip(each, predictions.kernels, parts, strict=True):
            kernel.prediction = prediction
            kernel.correct(scope_of(kernel.table, models), first.part(part))
        if len(points) > 1:
            swept = [kernel.swept(first.part(part)) for kernel, part in zip(each, parts, strict=True)]
            predictions.limit_at_others(limited, points, swept)
        costs = prior_costs(limited)
        for kernel, part in zip(each, parts, strict=True):
            for number, candidates in kernel.candidates(limited.part(part), costs.part(part)):
                kernels[number].append(candidates)


class _OfKernel:
    """The configs of one kernel on all problems; arrays begin with those of the first problem."""

    prediction: Prediction

    def __init__(self, table: StaticTable, problems: Sequence[Problem], points: Sequence[OperatingPoint]) -> None:
        self.table, self.on_problems, self._points = table, ManyProblems(table.space, problems), points
        self.rows: Array = (self.on_problems.valid & table.able).ravel().nonzero()[0]
        """Rows of `on_problems` that can run."""
        self._begins = np.arange(len(problems) + 1) * len(table.space)
        self._starts: list[int] = self.rows.searchsorted(self._begins).tolist()
        configs, nothing = self.on_problems.configs(self.rows), (NOTHING,) * len(points)
        self.runnable = [
            RunnableConfigs(table, alone, nothing, configs[start:end])
            for alone, (start, end) in zip(self.on_problems.each, pairwise(self._starts), strict=True)
        ]
        """Of each problem."""
        self._correction: Correction | None = None
        score = table.geometry(self.on_problems, 0).occupancy_score.take(configs)
        self._heuristics = [
            start + int(score[start:end].argmax()) if start < end else None for start, end in pairwise(self._starts)
        ]
        """Of each problem the position in `rows` that the occupancy heuristic picks; None where nothing can run."""
        self.estimated = self.rows if max(np.diff(self._starts)) <= SHORTLIST else self._shortlisted()
        """Those that are estimated."""
        self._ends: list[int] = self.estimated.searchsorted(self._begins).tolist()

    def _shortlisted(self) -> Array:
        chosen = np.zeros(len(self.rows), dtype=bool)
        counts = np.diff(self._starts)
        many = np.repeat(counts > SHORTLIST, counts)
        chosen[~many] = True
        starts = list(accumulate(counts[counts > SHORTLIST].tolist(), initial=0))
        chosen[many] = _promising(quick_costs(self.table, self.on_problems, self.rows[many]), starts, SHORTLIST)
        chosen[[position for position in self._heuristics if position is not None]] = True
        return self.rows[chosen]

    def correct(self, scope: "ModelScope | None", first: LimitedCosts) -> None:
        """Asks the trained model, if there is one; first: the prior's costs at the first operating point, (1, C)."""
        if scope is None:
            return
        from kernrec.recommender.estimate.correction import SCORED, Correction

        alone = first.at(0)
        scored = _promising((alone.latency_s, alone.energy_j), self._ends, SCORED).nonzero()[0]
        self._correction = Correction.of(scope, self.prediction, alone, scored, self._ends)

    def swept(self, first: LimitedCosts) -> Array:
        """The positions that are estimated at other operating points than the first, too."""
        costs = first.latency_s[0], first.energy_j[0]
        if self._correction is not None:
            costs = self._correction.corrected_values(*costs)
        return _promising(costs, self._ends, SWEPT).nonzero()[0]

    def candidates(self, limited: LimitedCosts, prior: Costs) -> Iterator[tuple[int, KernelCandidates]]:
        """(number of the problem, its candidates) of the problems that have some."""
        costs = prior if self._correction is None else self._correction.correct(prior)
        counts = [end - start for start, end in pairwise(self._ends)]
        problems = [(each.on_problem.problem, count) for each, count in zip(self.runnable, counts, strict=True)]
        costs, remarks = possible(costs, prior, limited, problems, self.table.gpu, self._points)
        predictions = self.prediction.by_problem(self._ends, [each.on_problem for each in self.runnable])
        parts = zip(pairwise(self._ends), predictions, self._heuristics, strict=True)
        for number, ((start, end), prediction, heuristic) in enumerate(parts):
            if heuristic is None:
                continue
            part = slice(start, end)
            scope = self._correction.scopes[number] if self._correction else None
            pick = int(self.estimated.searchsorted(self.rows[heuristic])) - start
            own = limited.part(part), costs.part(part), None, scope, UNCHECKED, remarks
            yield number, KernelCandidates(self.runnable[number], pick, prediction, *own)


def _promising(costs: Sequence[Array], starts: Sequence[int], count: int) -> Array:
    """Which candidates of each problem are `costs.promising`, by where those of each begin; bool (C,)."""
    chosen = np.zeros(len(costs[0]), dtype=bool)
    for start, end in pairwise(starts):
        if end - start <= count:
            chosen[start:end] = True
        else:
            chosen[start + promising(costs[0][start:end], costs[1][start:end], count)] = True
    return chosen
