"""Properties that give answers the flat attribute names of their JSON form."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernrec.gpu import GPU
    from kernrec.kernel import Kernel
    from kernrec.op import Problem
    from kernrec.op.workload import Workload
    from kernrec.recommender.choice_parts import Comparison, MeasuredOn, Place
    from kernrec.recommender.estimate.estimates import Estimate
    from kernrec.recommender.estimate.operating_point import OperatingPoint
    from kernrec.recommender.request import Objective, Query


class IntervalNames:
    """Properties for the intervals of latency and energy."""

    if TYPE_CHECKING:
        latency_s: Estimate
        energy_j: Estimate

    @property
    def latency_interval_s(self) -> tuple[float, float]:
        """Ends of the 90 % interval of latency in seconds."""
        return self.latency_s.low, self.latency_s.high

    @property
    def energy_interval_j(self) -> tuple[float, float]:
        """Ends of the 90 % interval of energy in joules."""
        return self.energy_j.low, self.energy_j.high

    @property
    def latency_own_interval_s(self) -> tuple[float, float]:
        """Interval of the latency error of this config only, for comparisons within the kernel."""
        return self.latency_s.own_interval

    @property
    def energy_own_interval_j(self) -> tuple[float, float]:
        """Interval of the energy error of this config only, for comparisons within the kernel."""
        return self.energy_j.own_interval

    @property
    def energy_source(self) -> str:
        """Source of the energy."""
        return self.energy_j.source


class ChoiceNames(IntervalNames):
    """JSON names of a recommendation: `rank` is `place.number`, for example."""

    if TYPE_CHECKING:
        kernel: Kernel
        place: Place
        point: OperatingPoint
        versus_occupancy: Comparison
        measurement: MeasuredOn | None

    @property
    def rank(self) -> int:
        """Rank from 1; tied recommendations share a rank."""
        return self.place.number

    @property
    def ambiguous(self) -> bool:
        """Whether the intervals overlap those of a neighbor."""
        return self.place.ambiguous

    @property
    def kernel_hash(self) -> str:
        """Hash of the kernel's source and spec."""
        return self.kernel.hash

    @property
    def locked_clock_hz(self) -> float | None:
        """Locked core clock in Hz; None if it is not locked."""
        return self.point.clock_hz

    @property
    def versus_occupancy_heuristic(self) -> "Comparison":
        """Comparison with the config of the same kernel that the occupancy heuristic picks."""
        return self.versus_occupancy

    @property
    def sessions(self) -> int:
        """Number of sessions that measured the config; 0 if it was not measured."""
        return self.measurement.sessions if self.measurement else 0

    @property
    def measured_at(self) -> str | None:
        """Time of the latest measurement, UTC, ISO 8601."""
        return self.measurement.measured_at if self.measurement else None

    @property
    def device(self) -> str | None:
        """Name of the GPU according to its driver."""
        return self.measurement.device if self.measurement else None

    @property
    def database(self) -> str | None:
        """Database that holds the measurement: `own`, `pulled`, or a file."""
        return self.measurement.database if self.measurement else None

    @property
    def signed_by(self) -> list[dict[str, str | None]]:
        """Signers of pulled rows, with the names that the user gave them."""
        return self.measurement.signed_by() if self.measurement else []

    @property
    def contributors(self) -> int:
        """Number of people whose rows were combined; 0 if the config was not measured."""
        return self.measurement.contributors if self.measurement else 0

    @property
    def contributors_latency_s(self) -> list[float] | None:
        """Lowest and highest latency measured by several people, in seconds."""
        return list(self.measurement.spread_s) if self.measurement and self.measurement.spread_s else None

    @property
    def rescaled(self) -> int:
        """Number of people whose rows were rescaled from their board to the GPU's typical speed."""
        return self.measurement.rescaled if self.measurement else 0


class AnswerNames:
    """JSON names of an answer, taken from its problem."""

    if TYPE_CHECKING:
        problem: Problem

    @property
    def op(self) -> str:
        """Operator, or kernel that declares its own problem."""
        return self.problem.op

    @property
    def shape(self) -> dict[str, int]:
        """Dimensions by name."""
        return dict(self.problem.dim)

    @property
    def dtype(self) -> str:
        """Data type."""
        return self.problem.dtype

    @property
    def layout(self) -> str:
        """Tensor layout."""
        return self.problem.layout


class NetworkNames:
    """JSON names of a network's answer, taken from its workload and query."""

    if TYPE_CHECKING:
        workload: Workload
        gpu: GPU
        query: Query

    @property
    def batch(self) -> int:
        """Batch size of the layers."""
        return self.workload.batch

    @property
    def tp(self) -> int:
        """Number of GPUs that the layers are split over."""
        return self.workload.tp

    @property
    def power_limit_w(self) -> float:
        """Power limit in watts that all layers run under; the GPU's default if the query sets none."""
        return self.query.point.limit_w(self.gpu)

    @property
    def objective(self) -> "Objective":
        """Objective of each layer."""
        return self.query.objective

    @property
    def locked_clock_hz(self) -> float | None:
        """Requested clock in Hz; None if it is not locked."""
        return self.query.clock_hz

    @property
    def inputs(self) -> str:
        """Input data, `random` or `zeros`."""
        return self.query.inputs

    @property
    def stacks(self) -> tuple[str, ...]:
        """Requested backends; empty for all."""
        return tuple(self.query.stacks)
