"""Candidates of a problem: every runnable config of all kernels, with its costs at each operating point."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.constants import CAPPED
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

POWER_LIMIT = "power limit"
"""Bottleneck of a config whose core the power limit slows down."""
_HELD = 0.95
"""Fraction of the boost clock below which a power limit is the bottleneck."""


@dataclass(frozen=True, eq=False)
class KernelMeasurements:
    """Measurements of a kernel's candidates, and the predictions that they correct."""

    measured: tuple[dict[int, MeasuredAnswer], ...]
    """Measurements at each operating point, by position of the candidate."""
    predicted: Costs
    """Costs on the scale of the measurements, as if no candidate had been measured; shape (points, C)."""
    rescaling: Rescaling
    """Factors that put the predictions on the scale of the measurements."""


@dataclass(frozen=True, eq=False)
class KernelCandidates:
    """Estimated candidates of one kernel, with costs of shape (points, C)."""

    runnable: RunnableConfigs
    heuristic: int
    """Position of the candidate that the occupancy heuristic picks."""
    prediction: Prediction
    limited: LimitedCosts
    costs: Costs
    measurements: KernelMeasurements | None
    """Measurements of the candidates; None if none was measured."""
    scope: "ModelScope | None"
    """Model that corrects the analytical model; None if no trained model applies."""
    belief: Belief = UNCHECKED
    """Shrinkage of the kernel's lead over the recorded times of the problem."""
    remarks: tuple[str, ...] = ()
    """Notes on costs that `physics.possible` rejected."""

    @property
    def to_default(self) -> Array:
        """Latency at the default power limit and clock over latency at the first operating point, (C,).

        Both latencies are those of the analytical model.
        """
        return np.asarray(self.prediction.limited().latency_s / self.limited.latency_s[0])

    @property
    def of_card(self) -> bool:
        """Whether the costs come from a model that learned the kernel on this GPU, without measurements."""
        return self.measurements is None and self.scope is not None and self.scope.gpu_known and self.scope.kernel_known

    @property
    def ran(self) -> bool:
        """Whether the kernel was measured on this GPU, or learned from recordings of this GPU."""
        return self.measurements is not None or self.of_card

    @cached_property
    def caution(self) -> Array:
        """Risk factor of each config's costs when it is compared with a config that was run, (C,)."""
        if self.measurements is None and self.scope is None:
            return np.full(len(self.rows), unsure(self.belief.deviation))
        factor = caution(self.costs.latency.at(0), self.belief.deviation, self.of_card, self.measurements is not None)
        for measured in self.measurements.measured if self.measurements else ():
            factor[list(measured)] = 1.0
        return factor

    @property
    def table(self) -> StaticTable:
        """Static table of the kernel."""
        return self.runnable.table

    @property
    def rows(self) -> Array:
        """Estimated rows of the config space, ascending."""
        return self.prediction.rows

    def at(self, point: int) -> "KernelCandidates":
        """Return the candidates at one operating point only."""
        alone, there = slice(point, point + 1), self.measurements
        if there is not None:
            there = KernelMeasurements(there.measured[alone], there.predicted.at(alone), there.rescaling)
        return replace(self, limited=self.limited.at(alone), costs=self.costs.at(alone), measurements=there)

    def with_belief(self, belief: Belief) -> "KernelCandidates":
        """Return the candidates of a kernel that nobody ran, with their lead shrunk by `belief`."""
        costs = believed(self.costs, belief)
        return KernelCandidates(
            self.runnable, self.heuristic, self.prediction, self.limited, costs, None, self.scope, belief, self.remarks
        )

    def bottleneck(self, point: int, position: int) -> str:
        """Return what takes longest at an operating point: a resource of the longest launch, or `POWER_LIMIT`."""
        resource, clock_hz = self.prediction.bottleneck(position), self.limited.clock_hz.item(point, position)
        if resource == "launch":
            return resource
        # Core parts hold at the boost clock.
        nominal, faster = self.prediction.at(position), clock_hz / self.table.gpu.boost_clock_hz
        core_s = nominal.core_s / faster
        if resource != "DRAM" and faster > 1.0 and nominal.dram_s > core_s:
            return "DRAM"
        held = faster < _HELD and self.limited.regime.item(point, position) == CAPPED
        return POWER_LIMIT if held and (resource != "DRAM" or core_s > nominal.dram_s) else resource

    def measured(self, point: int) -> Mapping[int, MeasuredAnswer]:
        """Return the measurements at an operating point, by position of the candidate."""
        return self.measurements.measured[point] if self.measurements else {}

    def config(self, position: int) -> dict[str, int]:
        """Return the config of the candidate at `position`."""
        return self.table.config(self.rows.item(position))


@dataclass(frozen=True, eq=False)
class CandidateSet:
    """Candidates of all kernels on a problem.

    A candidate is a position; the kernels follow one another. The cost table consists of the arrays `latency_s`,
    `energy_j` and `power_w`, each of shape (points, C). `kernels` holds the intervals and sources.
    """

    problem: Problem
    gpu: GPU
    points: tuple[OperatingPoint, ...]
    """Operating points; recommendations are compared at the first one."""
    kernels: tuple[KernelCandidates, ...]
    """Kernels with at least one candidate."""
    considered: tuple[RunnableConfigs, ...]
    """All kernels, including those without a runnable config."""
    foreign: tuple[MeasuredAnswer, ...] = ()
    """Measurements of kernels outside `kernels`, fastest first."""

    @cached_property
    def starts(self) -> list[int]:
        """Position of each kernel's first candidate, then the total number of candidates."""
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
        """Source of each latency as an index into `SOURCES`, (points, C)."""
        return self._table([kernel.costs.latency.source for kernel in self.kernels])

    @staticmethod
    def _table(columns: list[Array]) -> Array:
        return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)

    @cached_property
    def any_measured(self) -> bool:
        """Whether any candidate was measured."""
        return any(kernel.measurements is not None for kernel in self.kernels)

    @cached_property
    def fastest(self) -> int:
        """Position of the candidate with the lowest risk-adjusted latency at the first operating point."""
        return int(self.counted(self.latency_s[:1])[0].argmin())

    @property
    def runnable(self) -> int:
        """Number of runnable configs of all kernels, estimated or not."""
        return sum(len(kernel.rows) for kernel in self.considered)

    @cached_property
    def caution(self) -> Array | None:
        """Risk factor of each candidate's costs, (C,); None if all candidates carry the same risk.

        A config that nobody ran beats a config that somebody ran, or that a model learned on this GPU, only if its lead
        is larger than its error.
        """
        if not any(kernel.ran for kernel in self.kernels):
            return None
        return np.concatenate([kernel.caution for kernel in self.kernels])

    def counted(self, costs: Array) -> Array:
        """Return costs of shape (points, C), multiplied by the risk factors that apply in comparisons."""
        return costs if self.caution is None else costs * self.caution

    def locate(self, position: int) -> tuple[int, KernelCandidates, int]:
        """Return the kernel's number, the kernel, and the candidate's position within the kernel."""
        number = bisect_right(self.starts, position) - 1
        return number, self.kernels[number], position - self.starts[number]

    def at(self, point: int) -> "CandidateSet":
        """Return the set at one operating point only."""
        if len(self.points) == 1:
            return self
        kernels = tuple([kernel.at(point) for kernel in self.kernels])
        return CandidateSet(self.problem, self.gpu, (self.points[point],), kernels, self.considered, self.foreign)

    def only(self, number: int) -> "CandidateSet":
        """Return the set of one kernel only."""
        kernel = self.kernels[number]
        return CandidateSet(self.problem, self.gpu, self.points, (kernel,), (kernel.runnable,))
