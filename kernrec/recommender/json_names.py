"""Attributes of answers under the names that JSON has, for what Python keeps in richer parts."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernrec.gpu import GPU
    from kernrec.kernel import Kernel
    from kernrec.op import Problem
    from kernrec.op.workload import Workload
    from kernrec.recommender.choice_parts import Comparison, Estimate, MeasuredOn, Place
    from kernrec.recommender.estimate.operating_point import OperatingPoint
    from kernrec.recommender.request import Objective, Query


class IntervalNames:
    """The ends of the intervals of latency and energy."""

    if TYPE_CHECKING:
        latency_s: Estimate
        energy_j: Estimate

    @property
    def latency_interval_s(self) -> tuple[float, float]:
        """The ends of the 90 % interval."""
        return self.latency_s.low, self.latency_s.high

    @property
    def energy_interval_j(self) -> tuple[float, float]:
        """The ends of the 90 % interval."""
        return self.energy_j.low, self.energy_j.high

    @property
    def latency_own_interval_s(self) -> tuple[float, float]:
        """The interval of the config's own error: what counts against other configs of the kernel on the problem."""
        return self.latency_s.own_interval

    @property
    def energy_own_interval_j(self) -> tuple[float, float]:
        """The interval of the config's own error: what counts against other configs of the kernel on the problem."""
        return self.energy_j.own_interval

    @property
    def energy_source(self) -> str:
        """Where energy comes from."""
        return self.energy_j.source


class ChoiceNames(IntervalNames):
    """The names of a choice: `rank` is `place.number`, `latency_interval_s` the ends of `latency_s`, and so on."""

    if TYPE_CHECKING:
        kernel: Kernel
        place: Place
        point: OperatingPoint
        versus_occupancy: Comparison
        measurement: MeasuredOn | None

    @property
    def rank(self) -> int:
        """From 1; equal for choices that cannot be told apart."""
        return self.place.number

    @property
    def ambiguous(self) -> bool:
        """Whether its intervals overlap those of the choice before or after it."""
        return self.place.ambiguous

    @property
    def kernel_hash(self) -> str:
        """The hash of the kernel's source and spec."""
        return self.kernel.hash

    @property
    def locked_clock_hz(self) -> float | None:
        """The clock that the costs hold at; None where it is not locked."""
        return self.point.clock_hz

    @property
    def versus_occupancy_heuristic(self) -> "Comparison":
        """Against the config of the same kernel that the occupancy heuristic picks."""
        return self.versus_occupancy

    @property
    def sessions(self) -> int:
        """In how many sessions the config was measured; 0 for one that was not."""
        return self.measurement.sessions if self.measurement else 0

    @property
    def measured_at(self) -> str | None:
        """The latest time, UTC, ISO 8601."""
        return self.measurement.measured_at if self.measurement else None

    @property
    def device(self) -> str | None:
        """The GPU as its driver names it."""
        return self.measurement.device if self.measurement else None

    @property
    def database(self) -> str | None:
        """Which database answered: `own`, `pulled`, or a file."""
        return self.measurement.database if self.measurement else None

    @property
    def signed_by(self) -> list[dict[str, str | None]]:
        """The signers of pulled rows, with the names that the user gave them."""
        return self.measurement.signed_by() if self.measurement else []

    @property
    def contributors(self) -> int:
        """How many people's rows were combined; 0 for a config that was not measured."""
        return self.measurement.contributors if self.measurement else 0

    @property
    def contributors_latency_s(self) -> list[float] | None:
        """The least and the greatest of several people's latencies."""
        return list(self.measurement.spread_s) if self.measurement and self.measurement.spread_s else None

    @property
    def rescaled(self) -> int:
        """How many of these people have a card whose rows were put on the scale of its kind."""
        return self.measurement.rescaled if self.measurement else 0


class AnswerNames:
    """The names of an answer: those of its problem."""

    if TYPE_CHECKING:
        problem: Problem

    @property
    def op(self) -> str:
        """The operator, or the kernel whose own problem it is."""
        return self.problem.op

    @property
    def shape(self) -> dict[str, int]:
        """The dimensions by name."""
        return dict(self.problem.dim)

    @property
    def dtype(self) -> str:
        """The data type."""
        return self.problem.dtype

    @property
    def layout(self) -> str:
        """The tensor layout."""
        return self.problem.layout


class NetworkNames:
    """The names of a network's answer: those of its workload and query."""

    if TYPE_CHECKING:
        workload: Workload
        gpu: GPU
        query: Query

    @property
    def batch(self) -> int:
        """The batch of the layers."""
        return self.workload.batch

    @property
    def tp(self) -> int:
        """Over how many cards the layers are split."""
        return self.workload.tp

    @property
    def power_limit_w(self) -> float:
        """The power limit that all layers run under, the GPU's default included."""
        return self.query.point.limit_w(self.gpu)

    @property
    def objective(self) -> "Objective":
        """The criterion that each layer is optimized for."""
        return self.query.objective

    @property
    def locked_clock_hz(self) -> float | None:
        """The clock that was asked for; None where it is not locked."""
        return self.query.clock_hz

    @property
    def inputs(self) -> str:
        """The input data, `random` or `zeros`."""
        return self.query.inputs

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks that were asked for; all where it is empty."""
        return tuple(self.query.stacks)
