"""The candidate set of a request: the configs of all kernels that can run its problem, with their costs.

The candidates of the kernels lie side by side, at each operating point, in one cost table.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.power import RANDOM
from kernrec.op import Problem
from kernrec.recommender.estimate.measured_rows import applies
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.physics import impossible, refuse_too_large
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.estimate.yardstick import yardstick_of
from kernrec.recommender.kernel_candidates import (
    KernelCandidates,
    RunnableConfigs,
    beside_yardstick,
    estimate_kernels,
    scope_of,
)
from kernrec.store import Evidence, MeasuredAnswer
from kernrec.util.light_dataclass import dataclass
from kernrec.util.light_property import cached_property

if TYPE_CHECKING:
    from kernrec.recommender.estimate.model_store import ModelStore

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class CandidateSet:
    """The candidates of all kernels on a problem; a candidate is a position, kernel after kernel.

    The cost table is the arrays (points, C) `latency_s`, `energy_j` and `power_w`; intervals and sources are in
    `kernels`.
    """

    problem: Problem
    gpu: GPU
    points: tuple[OperatingPoint, ...]
    """The first one is what choices are compared at."""
    kernels: tuple[KernelCandidates, ...]
    """Those with at least one candidate."""
    considered: tuple[RunnableConfigs, ...]
    """All kernels, also those without any config that can run."""
    foreign: tuple[MeasuredAnswer, ...] = ()
    """Measurements of kernels that are not among them, fastest first."""

    @cached_property
    def starts(self) -> list[int]:
        """Where the candidates of each kernel begin, and how many there are."""
        return list(accumulate((len(kernel.rows) for kernel in self.kernels), initial=0))

    @cached_property
    def latency_s(self) -> Array:
        """Expected latency, (points, C)."""
        return self._table([kernel.costs.latency.value for kernel in self.kernels])

    @cached_property
    def energy_j(self) -> Array:
        """Expected energy, (points, C)."""
        return self._table([kernel.costs.energy.value for kernel in self.kernels])

    @cached_property
    def power_w(self) -> Array:
        """Expected mean power, (points, C)."""
        return self._table([kernel.costs.power_w for kernel in self.kernels])

    @cached_property
    def latency_source(self) -> Array:
        """Where latencies come from, positions in `SOURCES`, (points, C)."""
        return self._table([kernel.costs.latency.source for kernel in self.kernels])

    @staticmethod
    def _table(columns: list[Array]) -> Array:
        return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)

    @cached_property
    def any_measured(self) -> bool:
        """Whether something was measured of some candidate."""
        return any(kernel.measurements is not None for kernel in self.kernels)

    @cached_property
    def fastest(self) -> int:
        """The candidate that comes first at the first operating point where latency alone counts."""
        return int(self.counted(self.latency_s[:1])[0].argmin())

    @property
    def runnable(self) -> int:
        """How many configs of all kernels can run, estimated or not."""
        return sum(len(kernel.rows) for kernel in self.considered)

    @cached_property
    def caution(self) -> Array | None:
        """The factor by which each candidate's costs count more than expected, (C,); None where all count alike.

        A config that nobody ran comes before one that somebody ran, or that a model knows from this very card, only
        where its lead is larger than its error.
        """
        if not any(kernel.ran for kernel in self.kernels):
            return None
        return np.concatenate([kernel.caution for kernel in self.kernels])

    def counted(self, costs: Array) -> Array:
        """Costs (points, C) as they count where candidates are compared."""
        return costs if self.caution is None else costs * self.caution

    def locate(self, position: int) -> tuple[int, KernelCandidates, int]:
        """(number of the kernel, the kernel, the candidate's position among its own)."""
        number = bisect_right(self.starts, position) - 1
        return number, self.kernels[number], position - self.starts[number]

    def at(self, point: int) -> "CandidateSet":
        """The set at one of its operating points alone."""
        if len(self.points) == 1:
            return self
        kernels = tuple([kernel.at(point) for kernel in self.kernels])
        return CandidateSet(self.problem, self.gpu, (self.points[point],), kernels, self.considered, self.foreign)

    def only(self, number: int) -> "CandidateSet":
        """The set of one of the kernels alone."""
        kernel = self.kernels[number]
        return CandidateSet(self.problem, self.gpu, self.points, (kernel,), (kernel.runnable,))


def candidate_set(
    tables: Sequence[StaticTable],
    problem: Problem,
    points: Sequence[OperatingPoint],
    evidence: Evidence,
    models: "ModelStore | None" = None,
    whole_space: bool = False,
    inputs: str = RANDOM,
) -> CandidateSet:
    """Estimate the configs of all kernels at all operating points; the set may be empty.

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
    gpu = tables[0].gpu
    refuse_too_large(problem, gpu)
    considered = tuple([RunnableConfigs.of(table, problem, points, evidence) for table in tables])
    runnable = [each for each in considered if len(each.rows)]
    scopes = [scope_of(each.table, models) for each in runnable]
    kernels = estimate_kernels(runnable, points, scopes, whole_space) if runnable else []
    kernels = beside_yardstick(kernels, yardstick_of(problem, gpu, models, inputs), points[0])
    foreign = tuple(
        row for row in evidence.foreign if applies(row, gpu, points[0]) and not impossible(row, problem, gpu)
    )
    return CandidateSet(problem, gpu, tuple(points), tuple(kernels), considered, foreign)
