"""Candidates of a problem: every runnable config of all kernels, with its costs at each operating point."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.launch_costs import CLOCK_HZ, REGIME, LimitedCosts
from kernrec.model.prior.launch_time import RESOURCES
from kernrec.model.prior.microarchitecture import CAPPED
from kernrec.op import Problem
from kernrec.recommender.estimate.costs import LATENCY, Costs, Rescaling
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.prediction import Prediction
from kernrec.recommender.estimate.reference import UNCHECKED, risk, unsure
from kernrec.store import MeasuredAnswer
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.recommender.estimate.correction import ModelScope

Array = np.ndarray

POWER_LIMIT = "power limit"
"""Bottleneck of a config if the power limit lowers the core clock."""
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


class KernelCandidates:
    """Estimated candidates of one kernel."""

    def __init__(
        self,
        prediction: Prediction,
        heuristic: int,
        part: slice,
        all_limited: LimitedCosts,
        all_costs: Costs,
        measurements: KernelMeasurements | None = None,
        scope: "ModelScope | None" = None,
        remarks: tuple[str, ...] = (),
    ) -> None:
        """Collect the kernel's part of a candidate set.

        Args:
            prediction: the configs, and the analytical model's nominal costs of the candidates.
            heuristic: position of the candidate that the occupancy heuristic picks.
            part: slice of the candidate set.
            all_limited: the engine's costs at the operating points.
            all_costs: costs of the candidate set.
            measurements: measurements of the candidates; None if none was measured.
            scope: model that corrects the analytical model; None if no trained model applies.
            remarks: notes on costs that `physics.possible` rejected.
        """
        self.prediction, self.heuristic, self.part = prediction, heuristic, part
        self.table, self.rows = prediction.table, prediction.rows
        self._limited, self.all_costs = all_limited, all_costs
        self.measurements, self.scope, self.remarks, self.belief = measurements, scope, remarks, UNCHECKED
        trained = scope is not None and scope.gpu_known and scope.kernel_known
        self.of_card = trained and measurements is None
        """Whether the costs come from a model trained on this kernel and GPU, without measurements of this problem."""
        self.ran = trained or measurements is not None
        """Whether the kernel was measured on this GPU, or learned from recordings of this GPU."""

    @property
    def costs(self) -> Costs:
        """Costs of the candidates, (points, C)."""
        return self.all_costs.part(self.part)

    @cached_property
    def limited(self) -> LimitedCosts:
        """The analytical model's costs of the candidates, (points, C)."""
        first = self.prediction.column
        return self._limited.part(slice(first, first + len(self.rows)))

    @property
    def to_default(self) -> Array:
        """Latency at the default power limit and clock over latency at the first operating point, (C,).

        Both latencies are those of the analytical model.
        """
        return np.asarray(self.prediction.limited().latency_s / self.limited.latency_s[0])

    @cached_property
    def risk(self) -> Array:
        """Risk factor of each config's costs when it is compared with a config that was run, (C,)."""
        if self.measurements is None and self.scope is None:
            factor = np.empty(len(self.rows))
            factor.fill(unsure(self.belief.deviation))
            return factor
        costs, is_measured = self.all_costs, self.measurements is not None
        by_kind = risk(costs.kinds[LATENCY], self.belief.deviation, self.of_card, is_measured)
        factor = by_kind.take(costs.kind[LATENCY, 0, self.part].astype(np.int64))
        for measured in self.measurements.measured if self.measurements else ():
            factor[list(measured)] = 1.0
        return factor

    @cached_property
    def occupancy(self) -> Array:
        """Occupancy of each row's first launch: resident warps as a fraction of an SM's maximum, (rows,)."""
        return self.table.geometry(self.prediction.on_problem, 0).occupancy

    def within(self, costs: Costs, points: slice, part: slice) -> "KernelCandidates":
        """Return the candidates as a part of another candidate set.

        Args:
            costs: costs of the other set.
            points: slice of this set's operating points that the other set has.
            part: slice of the other set that belongs to the kernel.
        """
        limited, there = self._limited.at(points), self.measurements
        if there is not None:
            there = KernelMeasurements(there.measured[points], there.predicted.at(points), there.rescaling)
        own = self.prediction, self.heuristic, part, limited, costs, there, self.scope, self.remarks
        kernel = KernelCandidates(*own)
        kernel.belief = self.belief
        return kernel

    def running(self, point: int, position: int) -> tuple[float, str]:
        """Return the expected core clock in Hz and the bottleneck of a candidate at an operating point.

        The bottleneck is the slowest part: a resource of the longest launch, or `POWER_LIMIT`.
        """
        engine, column = self.prediction.in_engine, self.prediction.column + position
        resource, clock_hz = (
            RESOURCES[int(engine.longest.item(1, column))],
            self._limited.costs.item(CLOCK_HZ, point, column),
        )
        if resource == "launch":
            return clock_hz, resource
        faster = clock_hz / self.table.gpu.boost_clock_hz  # Core-bound times are valid at the boost clock.
        nominal = engine.nominal
        core_s, dram_s = nominal.item(0, column) / faster, nominal.item(1, column)
        if resource != "DRAM" and faster > 1.0 and dram_s > core_s:
            return clock_hz, "DRAM"
        held = faster < _HELD and self._limited.costs.item(REGIME, point, column) == CAPPED
        return clock_hz, POWER_LIMIT if held and (resource != "DRAM" or core_s > dram_s) else resource

    def measured(self, point: int) -> Mapping[int, MeasuredAnswer]:
        """Return the measurements at an operating point, by position of the candidate."""
        return self.measurements.measured[point] if self.measurements else {}

    def config(self, position: int) -> dict[str, int]:
        """Return the config of the candidate at `position`."""
        return self.table.config(self.rows.item(position))


class CandidateSet:
    """All C candidates of a problem, kernel after kernel. The position of a candidate identifies it."""

    def __init__(
        self,
        problem: Problem,
        gpu: GPU,
        points: tuple[OperatingPoint, ...],
        kernels: Sequence[KernelCandidates],
        considered: Sequence[Prediction],
        costs: Costs,
        foreign: Sequence[MeasuredAnswer] = (),
    ) -> None:
        """Collect the candidates.

        Args:
            problem: the problem.
            gpu: the GPU.
            points: operating points; recommendations are compared at the first one.
            kernels: kernels with at least one candidate.
            considered: all kernels, including those without a runnable config.
            costs: costs of the candidates, (points, C).
            foreign: measurements of kernels outside `kernels`, fastest first.
        """
        self.problem, self.gpu, self.points, self.kernels = problem, gpu, points, kernels
        self.considered, self.costs, self.foreign = considered, costs, foreign
        self.starts = [0]
        """Position of each kernel's first candidate, then the total number of candidates."""
        self.latency_s, self.energy_j, self.power_w = costs.values
        """Expected costs, (points, C)."""
        self.any_measured = self.any_ran = False
        """Whether any candidate was measured; whether any kernel was measured, or learned on this GPU."""
        for kernel in kernels:
            self.any_measured |= kernel.measurements is not None
            self.any_ran |= kernel.ran
            self.starts.append(kernel.part.stop)

    @cached_property
    def latency_source(self) -> Array:
        """Source of each latency as an index into `SOURCES`, (points, C)."""
        return self.costs.latency.source

    @cached_property
    def fastest(self) -> int:
        """Position of the candidate with the lowest risk-adjusted latency at the first operating point."""
        latency_s = self.latency_s[0]
        return int((latency_s if self.risk is None else latency_s * self.risk).argmin())

    @property
    def runnable(self) -> int:
        """Number of runnable configs of all kernels, estimated or not."""
        return sum([prediction.count for prediction in self.considered])

    @cached_property
    def risk(self) -> Array | None:
        """Risk factor of each candidate's costs, (C,); None if all candidates carry the same risk.

        An unmeasured config beats a measured config, or a config that a model learned on this GPU, only if its lead
        is larger than its error.
        """
        if not self.any_ran:
            return None
        return np.concatenate([kernel.risk for kernel in self.kernels])

    def locate(self, position: int) -> tuple[int, KernelCandidates, int]:
        """Return the kernel's number, the kernel, and the candidate's position within the kernel."""
        number = bisect_right(self.starts, position) - 1
        return number, self.kernels[number], position - self.starts[number]

    def at(self, point: int) -> "CandidateSet":
        """Return a copy with one operating point only."""
        if len(self.points) == 1:
            return self
        alone = slice(point, point + 1)
        costs = self.costs.at(alone)
        kernels = [kernel.within(costs, alone, kernel.part) for kernel in self.kernels]
        return CandidateSet(
            self.problem, self.gpu, (self.points[point],), kernels, self.considered, costs, self.foreign
        )

    def only(self, number: int) -> "CandidateSet":
        """Return a copy with the candidates of one kernel only."""
        kernel = self.kernels[number]
        alone = kernel.within(kernel.costs, slice(None), slice(0, len(kernel.rows)))
        return CandidateSet(self.problem, self.gpu, self.points, [alone], [kernel.prediction], kernel.costs)
