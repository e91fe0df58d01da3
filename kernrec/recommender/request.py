"""Define what a user can request, and at which operating points the configs are evaluated."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from functools import lru_cache
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.model.analytical.power import INPUTS, RANDOM, PowerModel
from kernrec.model.baselines.backends import known_backends
from kernrec.op import Problem, find_op
from kernrec.op.registry import parse_shape
from kernrec.recommender.estimate.operating_point import CACHES, COLD, Conditions, OperatingPoint
from kernrec.store import Evidence
from kernrec.util.cached_property import cached_property
from kernrec.util.light_dataclass import dataclass

_Cost = TypeVar("_Cost", float, np.ndarray)


class Objective(StrEnum):
    """Criterion for recommendations: latency, energy, EDP (energy x latency), or the Pareto front of both costs."""

    PARETO = "pareto"
    LATENCY = "latency"
    ENERGY = "energy"
    EDP = "edp"

    @property
    def quantities(self) -> tuple[str, ...]:
        """Costs that the objective depends on: `latency`, `energy` or both."""
        return (self.value,) if self in (Objective.LATENCY, Objective.ENERGY) else ("latency", "energy")

    @property
    def scalar(self) -> "Objective":
        """This objective, or latency for the Pareto front."""
        return Objective.LATENCY if self is Objective.PARETO else self

    def value_of(self, latency_s: _Cost, energy_j: _Cost) -> _Cost:
        """Return the value of the objective to minimize, for numbers or for arrays of any shape.

        Args:
            latency_s: latency in seconds.
            energy_j: energy in joules, in the shape of `latency_s`.

        Raises:
            UsageError: the objective is `pareto`, which has no single value.
        """
        if self is Objective.PARETO:
            raise unknown("objective", self.value, SCALAR_OBJECTIVES)
        if self is Objective.LATENCY:
            return latency_s
        return energy_j * latency_s if self is Objective.EDP else energy_j


SOURCES = ("predicted", "transferred", "learned", "measured", "published")
"""Sources to which a query can be restricted. `published` keeps only recorded baselines."""
_FORMER_SOURCES = {"prior": "predicted", "recorded": "published"}
"""Present names of sources, keyed by their names in version 0.1.0."""
SCALAR_OBJECTIVES = (Objective.LATENCY, Objective.ENERGY, Objective.EDP)


KERNREC, MIXED = "kernrec", "mixed"
"""Values of `backend`: only kernrec's kernels, or the fastest backend of each layer of a network."""


def backends_named(names: str | Iterable[str] | None) -> tuple[tuple[str, ...], str]:
    """Parse names of backends. Return the ordinary names, and the special name `KERNREC` or `MIXED` (empty if absent).

    Raises:
        UsageError: a name is unknown, or `kernrec` is combined with other names.
    """
    texts = [names] if isinstance(names, str) else list(names or ())
    typed = [part.strip() for text in texts for part in str(text).split(",")]
    special = dict.fromkeys(name.lower() for name in typed if name.lower() in (KERNREC, MIXED))
    others = [name for name in typed if name.lower() not in special]
    if len(special) > 1 or (KERNREC in special and others):
        raise UsageError(
            f"backend {','.join(typed)!r:.60}: {next(iter(special))} cannot be combined with other backends"
        )
    return known_backends(others), next(iter(special), "")


def objective_named(name: str) -> Objective:
    """Return the objective with this name. Raise `UsageError` if there is none."""
    try:
        return Objective(name)
    except ValueError:
        raise unknown("objective", name, tuple(Objective)) from None


@dataclass(frozen=True)
class Query:
    """Objective, bounds and operating point of a request. A bound of None is ignored."""

    objective: Objective = Objective.PARETO
    """Objective, or its name. An unknown name raises `UsageError`."""
    max_slowdown: float | None = None
    """Maximum slowdown of a recommendation, as a fraction of the latency of the fastest config."""
    max_power_w: float | None = None
    """Maximum mean power of a recommendation in watts."""
    power_limit_w: float | None = None
    """Power limit in watts. None means the GPU's default, or a sweep over several limits.

    A request sweeps over limits if its objective includes energy, or if it is about one kernel.
    """
    clock_hz: float | None = None
    """Locked core clock in Hz. None means that the clock is not locked."""
    top: int = 5
    """Maximum number of recommendations."""
    clocks: bool = False
    """Whether to evaluate locked core clocks in addition to power limits."""
    inputs: str = RANDOM
    """Kind of input data, such as `random`. See `Conditions.inputs`."""
    l2: str = COLD
    """State of L2 when a launch starts, `cold` or `warm`."""
    source: str = ""
    """Only source of estimates to use, from `SOURCES`. Empty means all sources."""
    backends: tuple[str, ...] = ()
    """Names of the backends whose baselines the answer includes. Empty means all backends."""
    each_config: bool = False
    """Whether each config has its own row. By default, similar configs share a row."""

    @cached_property
    def conditions(self) -> Conditions:
        return Conditions(self.inputs, self.l2)

    def __post_init__(self) -> None:
        object.__setattr__(self, "objective", objective_named(self.objective))
        if self.inputs not in INPUTS:
            raise unknown("inputs", self.inputs, INPUTS)
        if self.l2 not in CACHES:
            raise unknown("l2", self.l2, CACHES)
        if self.source in _FORMER_SOURCES:
            raise UsageError(f"source {self.source!r} is called {_FORMER_SOURCES[self.source]!r} now")
        if self.source and self.source not in SOURCES:
            raise unknown("source", self.source, SOURCES)
        if self.backends:
            object.__setattr__(self, "backends", known_backends(self.backends))
        if not isinstance(self.top, int) or self.top < 1:
            raise UsageError(f"top is {self.top!r}; expected a whole number of at least 1")
        for name, value, expected in (
            ("max slowdown", self.max_slowdown, "a fraction, such as 0.03"),
            ("max power", self.max_power_w, "a number of watts, such as 250"),
            ("power limit", self.power_limit_w, "a number of watts, such as 250"),
            ("clock", self.clock_hz, "a number of hertz, such as 1.41e9"),
        ):
            if value is not None and not isinstance(value, Real):
                raise UsageError(f"{name} is {value!r}; expected {expected}")
        if self.max_slowdown is not None and not self.max_slowdown >= 0:
            raise UsageError(f"max slowdown is {self.max_slowdown:g}; expected a fraction of at least 0")
        if self.clocks and self.clock_hz is not None:
            raise UsageError("a sweep over clocks and a locked clock were both asked for; give one of them")
        if self.max_power_w is not None and not self.max_power_w > 0:
            raise UsageError(f"max power is {self.max_power_w:g} W; expected a positive power")

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_hash"}  # Hashes differ by process.

    @cached_property
    def _hash(self) -> int:
        return hash((self.objective, self.max_slowdown, self.max_power_w, self.point, self.top, self.source))

    @cached_property
    def point(self) -> OperatingPoint:
        """Operating point of the query: its power limit and locked clock."""
        return OperatingPoint(self.power_limit_w, self.clock_hz)


@dataclass(frozen=True)
class Request:
    """Request for recommendations: a problem, a GPU and a query.

    Name either an `op`, for all kernels that implement it, or a `kernel`, for one kernel of the user or the library.
    """

    gpu: str
    op: str | None = None
    kernel: str | None = None
    shape: str | Mapping[str, int] = field(default_factory=dict)
    """Dimensions, as text (`m=1,n=2,k=3`) or as a mapping. A missing dimension has its default size."""
    dtype: str | None = None
    """Data type. The default is the first data type of the op or kernel."""
    layout: str | None = None
    """Tensor layout. The default is the best layout for an op, and the first layout for a kernel."""
    query: Query = field(default_factory=Query)

    def __post_init__(self) -> None:
        if (self.op is None) == (self.kernel is None):
            raise UsageError("a request needs either an op or a kernel; for a network, call recommend_network")

    @property
    def dims(self) -> Mapping[str, int]:
        return parse_shape(self.shape) if isinstance(self.shape, str) else self.shape

    def problem_of(self, kernel: "Kernel | None" = None) -> Problem:
        """Return the requested problem for a kernel. If `kernel` is None, return the problem of the op."""
        if kernel is None:
            return find_op(self.op or "").problem(self.dtype, self.layout, **self.dims)
        dtype, layout = self.dtype or kernel.dtypes[0], self.layout or kernel.layouts[0]
        return kernel.definition.problem(dtype, layout, **self.dims)


POWER_LIMITS = 8
"""Number of power limits in a sweep. Sweeps end at the default limit for an op, and at the maximum for one kernel."""
CLOCKS = 8
"""Number of locked core clocks in a sweep, which ends at the boost clock."""
CLOCK_STEP_HZ = 15e6
"""Step between core clocks of NVIDIA GPUs, 15 MHz (`nvidia-smi -q -d SUPPORTED_CLOCKS`)."""


def power_limits(gpu: GPU, most_w: float | None = None) -> list[float]:
    """Return power limits in whole watts, from the GPU's minimum to `most_w` (by default, the GPU's maximum)."""
    ends = gpu.power_min_w, gpu.power_max_w if most_w is None else most_w
    return [round(float(limit)) for limit in np.linspace(*ends, POWER_LIMITS)]


def sweep(gpu: GPU, limits: Sequence[float]) -> list[OperatingPoint]:
    """Return the default operating point, then an operating point for each power limit in watts."""
    return [OperatingPoint(limit) for limit in dict.fromkeys([gpu.tdp_w, *limits])]


@lru_cache
def lower_limits(gpu: GPU) -> tuple[OperatingPoint, ...]:
    """Return operating points below the default power limit, for a request about an op."""
    return tuple([OperatingPoint(limit) for limit in power_limits(gpu, gpu.tdp_w) if limit < gpu.tdp_w])


def lowest_clock_hz(gpu: GPU) -> float:
    """Return the lowest core clock in Hz to which a power limit can slow the GPU, according to the power model."""
    return PowerModel.for_gpu(gpu).minimum_hz


def clocks(gpu: GPU, limit_w: float | None) -> tuple[OperatingPoint, ...]:
    """Return a sweep over locked core clocks. `limit_w` is the power limit in watts, or None for the default."""
    steps = np.linspace(lowest_clock_hz(gpu), gpu.boost_clock_hz, CLOCKS + 1)[1:]
    return tuple([OperatingPoint(limit_w, float(step // CLOCK_STEP_HZ * CLOCK_STEP_HZ)) for step in steps])


@lru_cache
def op_points(gpu: GPU, query: Query) -> tuple[OperatingPoint, ...]:
    """Return the operating points of a request about an op: the requested point, then a sweep if needed."""
    if query.clock_hz is not None:
        return (query.point,)
    swept = query.objective is not Objective.LATENCY and query.power_limit_w is None
    limits = lower_limits(gpu) if swept else ()
    if (most_w := query.max_power_w) is not None and query.power_limit_w is None and gpu.power_min_w <= most_w:
        # A power limit of `max_power_w` already keeps every config within the requested power. A lower limit would only
        # make kernels slower.
        limits = (*limits, OperatingPoint(most_w)) if most_w < gpu.tdp_w else limits
    return (query.point, *limits, *(clocks(gpu, query.power_limit_w) if query.clocks else ()))


def kernel_points(gpu: GPU, query: Query, evidence: Evidence, kernel: Kernel) -> list[OperatingPoint]:
    """Return the operating points of a request about one kernel, the default point first.

    Without a requested power limit, the points include a sweep and all measured limits.
    """
    if query.power_limit_w is None:
        limits = [*power_limits(gpu), *measured_limits(gpu, evidence, [kernel])]
    else:
        limits = [query.power_limit_w]
    return [*sweep(gpu, limits), *(clocks(gpu, query.power_limit_w) if query.clocks else ())]


def measured_limits(gpu: GPU, evidence: Evidence, kernels: Iterable[Kernel]) -> list[float]:
    """Return the power limits in watts at which the kernels were measured and that the GPU accepts, ascending."""
    if not evidence.measured:
        return []
    hashes = {kernel.hash for kernel in kernels}
    limits = {row.power_limit_w for row in evidence.measured if row.kernel_hash in hashes}
    return sorted(limit for limit in limits if limit and gpu.power_min_w <= limit <= gpu.power_max_w)
