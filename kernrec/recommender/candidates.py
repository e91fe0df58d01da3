"""The candidates of a problem: the configs of all kernels that can run, with their costs at each operating point."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.launch_costs import LimitedCosts
from kernrec.op import Problem
from kernrec.recommender.estimate.costs import Costs, Rescaling
from kernrec.recommender.estimate.engine import RunnableConfigs
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.prediction import Prediction
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.estimate.yardstick import UNCHECKED, Belief, believed, caution, unsure
from kernrec.store import MeasuredAnswer
from kernrec.util.light_dataclass import dataclass
from kernrec.util.light_property import cached_property

if TYPE_CHECKING:
    from kernrec.recommender.estimate.correction import ModelScope

Array = np.ndarray


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
