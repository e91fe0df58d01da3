"""Candidates of a problem: the configs of all kernels that can run it, with their costs at each operating point."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernrec.kernel import Kernel, ProblemSpace
from kernrec.model.analytical.launch_costs import LimitedCosts
from kernrec.model.analytical.launch_time import RESOURCES, LaunchTime
from kernrec.op import Problem
from kernrec.recommender.estimate.costs import Costs
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.physics import refuse_too_large, violation_notes
from kernrec.recommender.estimate.reference import Shrinkage
from kernrec.recommender.estimate.space import Space
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.rank import KernelMeasurements, RankedKernel, RankedSpace
from kernrec.store import MeasuredAnswer
from kernrec.util.cached_property import cached_property
from kernrec.util.engine import query

if TYPE_CHECKING:
    from kernrec.model.learn.features import ModelInputs
    from kernrec.recommender.estimate.correction import ModelScope

Array = np.ndarray

POWER_LIMIT = "power limit"
"""Name of the bottleneck if the power limit lowers the core clock."""
BOTTLENECKS = (*RESOURCES, POWER_LIMIT)
"""Names of bottlenecks. The C++ engine returns an index in this tuple."""


class KernelCandidates:
    """Configs of one kernel that can run a problem. Arrays have one element for each of these C candidates."""

    def __init__(self, candidates: "CandidateSet", number: int) -> None:
        self._set, self._ranked, self._problem, self.number = candidates, candidates.ranked, candidates.number, number
        self._kernel = kernel = self._ranked.kernels[number]
        self._start, end = kernel.starts[self._problem : self._problem + 2]
        self._places = slice(kernel.column + self._start, kernel.column + end)
        """Slice of the candidates in the arrays of `RankedSpace`, which cover all kernels and problems."""
        self.table, self.rows, self.measured_rows = kernel.table, kernel.rows[self._start : end], kernel.measured[0]
        """Table of the kernel's configs, index of each candidate in the table, and the kernel's measurements."""
        self.ran = kernel.trained or kernel.is_measured
        """Whether the kernel was measured on this GPU, or has a model that was trained on such measurements."""
        self.heuristic = kernel.heuristics[self._problem]
        """Index of the candidate that the occupancy heuristic picks."""

    @cached_property
    def on_problem(self) -> ProblemSpace:
        """Config space of the kernel on the problem."""
        return self.table.space.at(self._kernel.forms[self._problem])

    @cached_property
    def scope(self) -> "ModelScope | None":
        """Trained model that corrects the costs, or None if none applies."""
        return self._kernel.scope_on(self._problem)

    @cached_property
    def runnable(self) -> Array:
        """Row indices of the configs that can run the problem and did not fail when measured, ascending."""
        rows: Array = self._ranked.in_engine.runnable(self.number, self._problem)
        return rows

    @property
    def unprofiled(self) -> list[MeasuredAnswer]:
        """Measurements of configs without a profile, which are not candidates."""
        pairs = zip(self.measured_rows.rows, self.measured_rows.measured, strict=True)
        return [answer for row, answer in pairs if row not in self.runnable]

    @property
    def sampled_blocks(self) -> tuple[int, int]:
        """Fewest and most blocks that were emulated per config for the first launch. Both are 0 without emulation."""
        if not self.table.kernel.sampled:
            return 0, 0
        blocks = self.table.launches[0].profiles.column("blocks.sampled")
        return int(blocks.min()), int(blocks.max())

    def launch_times(self, position: int) -> list[LaunchTime]:
        """Return a `LaunchTime` for each launch that the config at `position` performs."""
        launches = self._ranked.in_engine.launches(self.number, self._start + position)
        return [LaunchTime._make([pipe_clk, *times, dram_bytes]) for pipe_clk, times, dram_bytes in launches]

    def model_inputs(self, positions: Array) -> "ModelInputs":
        """Return the inputs of a trained model for some candidates, at the first operating point."""
        from kernrec.recommender.estimate.correction import inputs_of

        limited, costs = self.limited.at(0), self._ranked.in_engine
        return inputs_of(self.table, self.rows, limited, costs, positions, self.number, self._start)

    @cached_property
    def measurements(self) -> KernelMeasurements | None:
        """Measurements of the candidates, or None if no candidate was measured."""
        if (every := self._ranked.measurements.get(self.number)) is None:
            return None
        points = self._set.point_range
        return KernelMeasurements(every.measured[points], every.predicted.at(points), every.rescaling)

    @cached_property
    def shrinkage(self) -> Shrinkage:
        """Correction of optimistic predicted times, based on the fastest library's time (see `estimate.reference`)."""
        return self._ranked.shrinkage(self.number, self._problem)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes on predicted costs that violated a law of physics and were corrected."""
        ranking = self._ranked.ranking
        if not ranking.violated:
            return ()
        analytical, own = (violation_notes(*ranking.violations(each, self._problem)) for each in (-1, self.number))
        return (*analytical, *own)

    @property
    def costs(self) -> Costs:
        """Expected costs of the candidates after all corrections, with arrays of shape (points, candidates)."""
        ranking, points, places = self._ranked.ranking, self._set.point_range, self._places
        values, kind, low_s = ranking.costs(self._problem, points.start, points.stop, places.start, places.stop)
        return Costs(values, kind, ranking.kinds, low_s)

    @cached_property
    def limited(self) -> LimitedCosts:
        """Costs that the analytical model predicts under each power limit, as arrays of shape (points, candidates)."""
        return self._ranked.limited.at(self._set.point_range).part(self._places)

    @cached_property
    def risk(self) -> Array:
        """Return the values of `CandidateSet.risk` for this kernel's candidates, (C,)."""
        return np.asarray(self._ranked.ranking.risk[self._places])

    def running(self, point: int, position: int) -> tuple[float, str]:
        """Return a candidate's expected core clock in Hz and its bottleneck."""
        point, place = self._set.point_range.start + point, self._places.start + position
        clock_hz, number = self._ranked.ranking.running(self.number, point, place)
        return clock_hz, BOTTLENECKS[number]

    def measured(self, point: int) -> Mapping[int, MeasuredAnswer]:
        """Return the measurements at an operating point, keyed by the index of the candidate."""
        return self.measurements.measured[point] if self.measurements else {}

    def config(self, position: int) -> dict[str, int]:
        return self.table.config(self.rows.item(position))


class CandidateSet:
    """All candidates of a problem, ordered by kernel. Indices of candidates refer to this order."""

    def __init__(
        self, ranked: RankedSpace, number: int, kernels: range | None = None, points: range | None = None
    ) -> None:
        """Select candidates of one problem. Comparisons use the first operating point.

        Args:
            number: index of the problem in `ranked`.
            kernels: indices of the kernels to include, or None for all.
            points: indices of the operating points to include, or None for all.
        """
        self.ranked, self.number = ranked, number
        self.problem, self.gpu = ranked.problems[number], ranked.gpu
        self._numbers = range(len(ranked.kernels)) if kernels is None else kernels
        points = range(len(ranked.points)) if points is None else points
        self.point_range = slice(points.start, points.stop)
        self.points: tuple[OperatingPoint, ...] = ranked.points[points.start : points.stop]
        kernels = self._numbers
        self.in_engine = query.Candidates(
            ranked.ranking, number, kernels.start, kernels.stop, points.start, points.stop
        )
        self.any_measured, self.any_ran = self.in_engine.any_measured, self.in_engine.any_ran
        """`any_measured`: whether any candidate was measured. `any_ran`: whether `ran` is true for any kernel."""
        self.every_kernel: Sequence[RankedKernel] = ranked.kernels[self._numbers.start : self._numbers.stop]
        """All kernels, including those that cannot run the problem."""

    def __len__(self) -> int:
        count: int = self.in_engine.count
        return count

    @cached_property
    def starts(self) -> list[int]:
        """Index of the first candidate of each kernel that has candidates, then the number of all candidates."""
        return [*(start for _, start in self.in_engine.segments), len(self)]

    @cached_property
    def _runnable_kernels(self) -> list[RankedKernel]:
        return [self.ranked.kernels[number] for number, _ in self.in_engine.segments]

    @property
    def tables(self) -> list[StaticTable]:
        """Tables of the kernels that have candidates."""
        return [kernel.table for kernel in self._runnable_kernels]

    @property
    def runnable(self) -> int:
        """Number of configs that can run the problem, including those without an estimate."""
        return sum([kernel.counts[self.number] for kernel in self.every_kernel])

    @cached_property
    def scopes(self) -> "list[ModelScope]":
        """Trained models that correct the costs of candidates."""
        scopes = [kernel.scope_on(self.number) for kernel in self._runnable_kernels]
        return [scope for scope in scopes if scope is not None]

    @cached_property
    def considered(self) -> list[KernelCandidates]:
        """Candidates of each kernel, including kernels that cannot run the problem."""
        return [KernelCandidates(self, number) for number in self._numbers]

    @cached_property
    def kernels(self) -> list[KernelCandidates]:
        """Candidates of each kernel that can run the problem."""
        return [kernel for kernel in self.considered if len(kernel.rows)]

    def kernel(self, number: int) -> KernelCandidates:
        """Return the candidates of the kernel with index `number` among all kernels of the problem."""
        return self.considered[number - self._numbers.start]

    @cached_property
    def foreign(self) -> list[MeasuredAnswer]:
        """Measurements of kernels outside kernrec's library at the first operating point, fastest first."""
        return self.ranked.foreign(self.problem, self.points[0])

    @cached_property
    def costs(self) -> Costs:
        """Expected costs of the candidates, with arrays of shape (points, candidates)."""
        parts = [kernel.costs for kernel in self.considered]
        if len(parts) == 1:
            return parts[0]
        names = "values", "kind", "low_s"
        values, kind, low_s = (np.concatenate([getattr(each, name) for each in parts], axis=-1) for name in names)
        return Costs(values, kind, self.ranked.ranking.kinds, low_s)

    @property
    def latency_s(self) -> Array:
        """Expected latency in seconds, array of shape (points, candidates)."""
        return self.costs.latency.value

    @property
    def energy_j(self) -> Array:
        """Expected energy in joules, array of shape (points, candidates)."""
        return self.costs.energy.value

    @cached_property
    def latency_source(self) -> Array:
        """Source of each latency as an index in `SOURCES`, array of shape (points, candidates)."""
        return self.costs.latency.source

    @cached_property
    def fastest(self) -> int:
        """Index of the candidate with the lowest latency times `risk`, a factor for uncertainty, at the first point."""
        position: int = self.in_engine.fastest()
        return position

    @property
    def fastest_kernel(self) -> tuple[Kernel, float]:
        """Kernel of the `fastest` candidate, and the candidate's latency in seconds."""
        number, latency_s = self.in_engine.fastest_kernel()
        return self.ranked.kernels[number].table.kernel, latency_s

    @cached_property
    def risk(self) -> Array | None:
        """Return the factor on each candidate's costs in comparisons, (C,), or None without measured kernels.

        The factor exceeds 1 for uncertain predictions, so that measured kernels are preferred.
        """
        if not self.any_ran:
            return None
        return np.concatenate([kernel.risk for kernel in self.kernels])

    def locate(self, position: int) -> tuple[int, KernelCandidates, int]:
        """Return (index of the candidate's kernel in `kernels`, kernel, index of the candidate in the kernel)."""
        number = bisect_right(self.starts, position) - 1
        return number, self.kernels[number], position - self.starts[number]

    def at(self, point: int) -> "CandidateSet":
        """Return all candidates at one operating point."""
        if len(self.points) == 1:
            return self
        first = self.point_range.start + point
        return CandidateSet(self.ranked, self.number, self._numbers, range(first, first + 1))

    def only(self, number: int) -> "CandidateSet":
        """Return the candidates of one kernel. `number` is the kernel's index in `kernels`."""
        place, points = self.kernels[number].number, range(self.point_range.start, self.point_range.stop)
        return CandidateSet(self.ranked, self.number, range(place, place + 1), points)


ROWS = 1 << 19
"""Maximum number of configs times problems in a batch. It limits memory."""
TOGETHER = 128


def candidate_set(space: Space, problem: Problem, points: Sequence[OperatingPoint]) -> CandidateSet:
    """Return the candidates of one problem at one or more operating points. The set may be empty.

    Raises:
        KernrecError: the problem does not fit the GPU's memory.
    """
    refuse_too_large(problem, space.gpu)
    return CandidateSet(RankedSpace(space, [problem], tuple(points)), 0)


def candidate_sets(
    space: Space, problems: Sequence[Problem], points: Sequence[OperatingPoint]
) -> Iterator[CandidateSet]:
    """Yield the candidates of each problem in order. Each set is bit-identical to the result of `candidate_set`."""
    size = max(1, min(TOGETHER, ROWS // sum(map(len, space.tables))))
    for first in range(0, len(problems), size):
        ranked = RankedSpace(space, problems[first : first + size], tuple(points))
        for number in range(len(ranked.problems)):
            yield CandidateSet(ranked, number)
