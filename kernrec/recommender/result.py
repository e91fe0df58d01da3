"""Answers: recommended configs with their costs, intervals, sources and comparisons."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import repeat
from typing import TYPE_CHECKING, Any

from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.kernel import BoundLaunch, Kernel, bind_launches
from kernrec.model.analytical.power import RANDOM
from kernrec.model.analytical.spread import SOURCES, Source
from kernrec.model.analytical.spread import Estimate as Estimate
from kernrec.op import Problem
from kernrec.recommender import tabular
from kernrec.recommender.estimate.operating_point import Conditions, OperatingPoint
from kernrec.recommender.json_form import (
    Alias,
    IntervalNames,
    JsonForm,
    MeasuredNames,
    OfPart,
    plain,
)
from kernrec.recommender.request import Objective, Query
from kernrec.store import MeasuredAnswer
from kernrec.util.cached_property import cached_property
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.model.analytical.calibration import Calibration
    from kernrec.recommender.baselines import Baseline
    from kernrec.recommender.context import GpuContext
    from kernrec.recommender.estimate.correction import ModelScope

Remark = Callable[[], Iterable[str]]
"""Function that returns notes of an answer. It is called when the notes are first read."""


def sum_of(estimates: Sequence[Estimate], counts: Iterable[int] = repeat(1)) -> Estimate:
    """Add up estimates, each multiplied by its count. The errors are assumed to be fully correlated.

    The sum has the source of the least certain estimate.
    """
    numbers = list(zip(counts, estimates))  # noqa: B905 - `counts` may be endless
    value, low, high = (sum(n * getattr(each, name) for n, each in numbers) for name in ("value", "low", "high"))
    return Estimate(value, low, high, min((Source(each.source) for each in estimates), key=SOURCES.index))


@dataclass(frozen=True)
class Comparison(JsonForm):
    """Savings of a config compared with a reference config."""

    energy_saved: float
    """Energy saved, as a fraction of the energy of the reference config."""
    slowdown: float
    """Additional latency, as a fraction of the reference config's latency. Negative if the config is faster."""


@dataclass(frozen=True)
class Saving(JsonForm):
    """Energy that the top recommendation saves at another power limit or clock, without losing time."""

    power_limit_w: float
    """Power limit in watts at which the energy is saved."""
    locked_clock_hz: float | None
    """Locked core clock in Hz at which the energy is saved. None means that the clock is not locked."""
    slowdown: float
    """Additional latency, as a fraction of the latency at the default power limit."""
    energy_saved: float
    """Energy saved, as a fraction of the energy at the default power limit."""


@dataclass(frozen=True)
class Recommendation(IntervalNames, MeasuredNames, JsonForm):
    """One recommended config, with its expected costs and the sources of these costs."""

    JSON = (
        "rank ambiguous kernel kernel_hash config alike may_be_faster power_limit_w locked_clock_hz launches latency_s"
        " long_run_latency_s energy_j power_w clock_hz source energy_source bottleneck occupancy versus_fastest"
        " versus_occupancy_heuristic sessions measured_at device database signed_by contributors contributors_latency_s"
        " rescaled"
    )

    kernel: Kernel
    config: Mapping[str, int]
    problem: Problem
    gpu: GPU
    point: OperatingPoint
    """Operating point (power limit and clock) for which the costs are valid."""
    rank: int
    """Rank, 1 for the best. Measured recommendations share a rank if their intervals overlap."""
    exact: bool
    """Whether every cost that the objective counts was measured."""
    ambiguous: bool
    """Whether another config could have this rank, because the 90 % intervals of their costs overlap."""
    latency_s: Estimate
    energy_j: Estimate
    power_w: float
    """Mean power in watts while the config runs."""
    clock_hz: float
    """Expected core clock in Hz under the power limit."""
    bottleneck: str
    occupancy: float
    """Resident warps per SM during the first launch, as a fraction of the SM's maximum."""
    fastest: tuple[float, float]
    """Latency (s) and energy (J) of the fastest config of all kernels, at the first operating point."""
    heuristic: tuple[float, float]
    """Latency (s) and energy (J) of the occupancy heuristic's config, at the first operating point."""
    measurement: MeasuredAnswer | None = None
    """Measurement of the config at this operating point, or None if there is none."""
    alike: int = 0
    """Number of similar configs that the recommendation also represents."""
    unsure: float = 1.0
    """Factor on the costs in comparisons with measured configs, which is above 1 for uncertain predictions."""
    inputs: str = RANDOM
    """Kind of input data, one of `kernrec.model.analytical.power.INPUTS`."""
    may_be_faster: bool = False
    """Whether the config is expected to be faster than `fastest`, but is too uncertain to rank first."""

    kernel_hash = Alias[str]("Hash of the kernel's source and spec.", "kernel.hash")
    database = OfPart[str | None](
        "Database that holds the measurement: `own`, `pulled`, or a file.", "measurement.database", None
    )
    contributors = OfPart[int]("Number of people whose rows were combined.", "measurement.contributors", 0)
    rescaled = OfPart[int](
        "Number of people whose rows were rescaled to the GPU's typical speed.", "measurement.rescaled", 0
    )

    def __repr__(self) -> str:
        return tabular.recommendation_summary(self)

    @property
    def place(self) -> str:
        """Rank for display: `~1` if predicted, or `1=` if other measured recommendations share the rank."""
        return f"{self.rank}{'=' * self.ambiguous}" if self.exact else f"~{self.rank}"

    @property
    def source(self) -> Source:
        """Source of the latency. The source of the energy is `energy_j.source`."""
        return Source(self.latency_s.source)

    @property
    def power_limit_w(self) -> float:
        """Power limit in watts at which the costs are valid."""
        return self.point.limit_w(self.gpu)

    @cached_property
    def long_run_latency_s(self) -> float | None:
        """Expected latency in seconds if the config runs for a second or more. None if the latency was measured."""
        if self.latency_s.source == Source.MEASURED:
            return None
        from kernrec.model.analytical.power import PowerModel
        from kernrec.model.analytical.sustained_roof import long_run_s

        power = PowerModel.for_gpu(self.gpu, self.inputs)
        run = self.latency_s.value, self.power_w, self.clock_hz
        return long_run_s(self.gpu, power, self.problem, self.power_limit_w, *run)

    @property
    def versus_fastest(self) -> Comparison:
        """Comparison with the fastest config of all kernels."""
        return self._versus(*self.fastest)

    @property
    def versus_occupancy_heuristic(self) -> Comparison:
        """Comparison with the config that the occupancy heuristic picks for the same kernel."""
        return self._versus(*self.heuristic)

    def _versus(self, latency_s: float, energy_j: float) -> Comparison:
        return Comparison(1.0 - self.energy_j.value / energy_j, self.latency_s.value / latency_s - 1.0)

    @cached_property
    def launches(self) -> tuple[BoundLaunch, ...]:
        """Kernel launches of the config, in order, each with grid, block, shared memory and arguments."""
        return bind_launches(self.kernel, self.config, self.problem, self.gpu.sm)

    def as_dict(self) -> dict[str, Any]:
        names = ("entry", "grid", "block", "shared_bytes")
        launches = [{name: plain(getattr(launch, name)) for name in names} for launch in self.launches]
        return super().as_dict() | {"launches": launches}


@dataclass(frozen=True)
class Foreign(MeasuredNames, JsonForm):
    """Measured config of a kernel that is not in kernrec's library."""

    JSON = (
        "kernel config power_limit_w locked_clock_hz latency_s energy_j source measured_by sessions measured_at device"
    )

    kernel: str
    config: Mapping[str, int]
    point: OperatingPoint
    latency_s: Estimate
    energy_j: Estimate | None
    replayed: bool
    """Whether the times come from somebody's recording."""
    measurement: MeasuredAnswer
    measured_by: str | None
    """Program that made the measurement. For an imported recording, the tool and the person."""

    @property
    def source(self) -> str:
        return "replayed" if self.replayed else Source.MEASURED

    @property
    def power_w(self) -> float | None:
        return None if self.energy_j is None else self.energy_j.value / self.latency_s.value

    @property
    def power_limit_w(self) -> float | None:
        return self.point.power_limit_w


@dataclass(frozen=True)
class Answer(JsonForm):
    """Answer to a request about one problem on one GPU."""

    JSON = (
        "op problem shape dtype layout layout_chosen gpu objective power_limit_w inputs l2 candidates calibration"
        " models kernel kernel_hash sampled_blocks occupancy_heuristic saving no_kernel baselines leading_backend"
        " recommendations beside foreign notes"
    )

    problem: Problem
    gpu: GPU
    query: Query
    point: OperatingPoint
    """First operating point of the request. In a sweep, each recommendation has its own point."""
    recommendations: tuple[Recommendation, ...]
    """Recommendations, best first. On a Pareto front, the fastest comes first."""
    candidates: int
    """Number of configs that can run the problem."""
    remarks: tuple[Remark, ...] = field(repr=False, compare=False)
    """Functions that return the `notes`. They are called when `notes` is first read."""
    calibration: "Calibration | None" = None
    """Fitted coefficients of the analytical model. None means that the model uses the GPU's data sheet."""
    models: "tuple[ModelScope, ...]" = ()
    """Trained models that correct the costs of the analytical model."""
    kernel: Kernel | None = None
    """Kernel that the request is about, or None if the request is about an op."""
    sampled_blocks: tuple[int, int] | None = None
    """Fewest and most blocks that were emulated per config for the first launch. Both are 0 without emulation."""
    occupancy_heuristic: Recommendation | None = None
    """Config that the occupancy heuristic picks for the kernel, at the default power limit."""
    saving: Saving | None = None
    """Energy saving at another power limit or clock. It is None if too small, or if the query sets a limit."""
    beside: tuple[Recommendation, ...] = ()
    """Best config of a CUDA kernel if all recommendations are Triton kernels, and vice versa. Otherwise empty."""
    foreign: tuple[Foreign, ...] = ()
    """Measurements of kernels that are not in kernrec's library, best first."""
    layout_chosen: bool = False
    """Whether kernrec selected a layout other than the op's default."""
    no_kernel: str | None = None
    """Reason why no kernel runs the problem, or None if a kernel runs the problem."""
    context: "GpuContext | None" = field(default=None, repr=False, compare=False)
    """Data for the baselines, or None if the answer has no baselines."""

    op = Alias[str]("Operator, or kernel that declares its own problem.", "problem.op")
    shape = Alias[dict[str, int]]("Dimensions by name.", "problem.dim")
    dtype = Alias[str]("Data type.", "problem.dtype")
    layout = Alias[str]("Tensor layout.", "problem.layout")
    objective = Alias[Objective]("Objective that ranks the recommendations.", "query.objective")
    backends = Alias[tuple[str, ...]]("Backends whose baselines the answer includes; empty for all.", "query.backends")
    source = Alias[str]("Only source of estimates that the query allows; empty for all sources.", "query.source")
    conditions = Alias[Conditions]("Assumed input data, and assumed state of L2 at a launch.", "query.conditions")
    inputs = Alias[str]("Assumed input data, `random` or `zeros`.", "query.inputs")
    l2 = Alias[str]("Assumed state of L2 when a launch starts, `cold` or `warm`.", "query.l2")
    kernel_hash = OfPart[str | None]("Hash of the kernel's source and spec.", "kernel.hash", None)

    def __repr__(self) -> str:
        return tabular.summary(self)

    def __str__(self) -> str:
        return tabular.text(tabular.title(self, self.problem), tabular.cells(self))

    def _repr_html_(self) -> str:
        return tabular.html(tabular.title(self, self.problem), self.notes, tabular.cells(self))

    def to_arrow(self) -> Any:
        """Return the recommendations, then the baselines, as a `pyarrow.Table` with the columns of `--format csv`.

        Raises:
            KernrecError: PyArrow is not installed.
        """
        return tabular.arrow_table(tabular.plain_rows(self))

    @property
    def best(self) -> Recommendation:
        """Top recommendation. Raises `KernrecError` if the answer contains only baselines."""
        if self.no_kernel is not None:
            raise KernrecError(self.no_kernel)
        return self.recommendations[0]

    @cached_property
    def baselines(self) -> "tuple[Baseline, ...]":
        """Baselines at the operating point of the top recommendation, fastest first."""
        if self.context is None:
            return ()
        from kernrec.recommender.baselines import baselines_of, beside

        point = self.recommendations[0].point if self.recommendations else self.point
        baselines = baselines_of(self.context, self.problem, point, self.query.backends)
        if source := self.query.source:
            baselines = tuple(baseline for baseline in baselines if baseline.source == source)
        if not self.recommendations:
            return baselines
        latency = self.best.latency_s
        return beside(baselines, latency.value, self.best.energy_j.value, (latency.low, latency.high))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Notes on what limits the accuracy or validity of the answer."""
        return tuple(line for remark in self.remarks for line in remark())

    @property
    def leading_backend(self) -> str | None:
        """Name of the backend that ranks before the top recommendation, or None if there is none."""
        return None if self.leading_baseline is None else self.leading_baseline.backend

    @cached_property
    def leading_baseline(self) -> "Baseline | None":
        """Best baseline that ranks before the top recommendation, or None if there is none.

        Usually the lower cost ranks first. But the factor `unsure` (above 1 for uncertain predictions) multiplies the
        recommendation's cost if the baseline was recorded on this GPU and the objective is not `energy`.
        """
        if not self.recommendations:
            return None
        own = self.value_of(self.best.latency_s.value, self.best.energy_j.value)
        for baseline in self.ranked_baselines:
            recorded_here = baseline.source in ("published", "learned")
            sure = self.best.unsure if recorded_here and self.objective is not Objective.ENERGY else 1.0
            if self.value_of(baseline.latency_s, baseline.energy_j) < own * sure:
                return baseline
        return None

    @property
    def ranked_baselines(self) -> "tuple[Baseline, ...]":
        """Baselines in the order of the objective, best first."""
        return tuple(sorted(self.baselines, key=lambda baseline: self.value_of(baseline.latency_s, baseline.energy_j)))

    def value_of(self, latency_s: float, energy_j: float | None) -> float:
        """Return the value to minimize. It is infinite if the objective needs an energy that is not known."""
        return self.objective.scalar.value_of(latency_s, float("inf") if energy_j is None else energy_j)

    @property
    def power_limit_w(self) -> float:
        """Power limit in watts at `point`."""
        return self.point.limit_w(self.gpu)

    def as_dict(self) -> dict[str, Any]:
        of_kernel = () if self.kernel else ("kernel", "kernel_hash", "sampled_blocks", "occupancy_heuristic")
        return {name: value for name, value in super().as_dict().items() if name not in of_kernel}
