"""User's question: a `Request` with the problem and the GPU, a `Query` with objective and bounds, and operating points.

An objective that counts energy benefits from a lower power limit. So without `--power-limit` and `--clock`, it is
evaluated over a range of limits. Latency is lowest at the default limit and needs no sweep.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from functools import lru_cache
from numbers import Real

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.model.analytical.power import INPUTS, RANDOM, PowerModel
from kernrec.model.baselines.backends import known_backends
from kernrec.op import Problem, find_op
from kernrec.op.registry import parse_shape
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.store import Evidence
from kernrec.util.light_dataclass import dataclass


class Objective(StrEnum):
    """Criterion for recommendations; `pareto` is the front of latency and energy, `edp` is energy x latency."""

    PARETO = "pareto"
    LATENCY = "latency"
    ENERGY = "energy"
    EDP = "edp"

    @property
    def quantities(self) -> tuple[str, ...]:
        """Quantities that the objective counts: `latency`, `energy` or both."""
        return (self.value,) if self in (Objective.LATENCY, Objective.ENERGY) else ("latency", "energy")

    def value_of(self, latency_s: np.ndarray, energy_j: np.ndarray) -> np.ndarray:
        """Return the value to minimize, elementwise; raise `UsageError` for a Pareto front."""
        if self is Objective.PARETO:
            raise unknown("objective", self.value, SCALAR_OBJECTIVES)
        if self is Objective.LATENCY:
            return latency_s
        return energy_j * latency_s if self is Objective.EDP else energy_j


SOURCES = ("predicted", "transferred", "learned", "measured", "published")
"""Sources that a query can be restricted to; `published` means recorded baselines of this problem on this GPU."""
_FORMER_SOURCES = {"prior": "predicted", "recorded": "published"}
"""Names of sources in 0.1.0, and their replacements."""
SCALAR_OBJECTIVES = (Objective.LATENCY, Objective.ENERGY, Objective.EDP)


KERNREC, MIXED = "kernrec", "mixed"
"""Values of `backend` that are no libraries: kernrec's kernels, or the fastest backend for each layer of a network."""


def backends_named(names: str | Iterable[str] | None) -> tuple[tuple[str, ...], str]:
    """Return the backends with these names, then `KERNREC` or `MIXED` if the names contain it, else an empty text.

    Args:
        names: names in a sequence, or in a text separated by commas.

    Raises:
        UsageError: a name is unknown, or `kernrec` is combined with others.
    """
    texts = [names] if isinstance(names, str) else list(names or ())
    typed = [part.strip() for text in texts for part in str(text).split(",")]
    special = dict.fromkeys(name.lower() for name in typed if name.lower() in (KERNREC, MIXED))
    others = [name for name in typed if name.lower() not in special]
    if len(special) > 1 or (KERNREC in special and others):
        raise UsageError(f"backend {','.join(typed)!r:.60}: {next(iter(special))} cannot be combined with others")
    return known_backends(others), next(iter(special), "")


def objective_named(name: str) -> Objective:
    """Return the objective of this name; raise `UsageError` with the nearest known name."""
    if name not in tuple(Objective):
        raise unknown("objective", name, tuple(Objective))
    return Objective(name)


@dataclass(frozen=True)
class Query:
    """Objective, bounds and operating point of a request; None disables a bound."""

    objective: Objective = Objective.PARETO
    """Objective; a text is converted to an `Objective` or raises `UsageError`."""
    max_slowdown: float | None = None
    """Accepted slowdown, as a fraction of the fastest config's latency."""
    max_power_w: float | None = None
    """Maximum mean power of a recommendation in watts."""
    power_limit_w: float | None = None
    """Power limit of the GPU in watts; None for its default, and a range of limits if energy counts."""
    clock_hz: float | None = None
    """Locked core clock in Hz; None if it is not locked."""
    top: int = 5
    clocks: bool = False
    inputs: str = RANDOM
    """Input data, one of `INPUTS`. It affects power, and so the clock under a power limit."""
    source: str = ""
    """Source to which answers are restricted, one of `SOURCES`; empty for all."""
    backends: tuple[str, ...] = ()
    """Backends whose baselines are included, by their names in `BACKENDS`; empty for all."""
    each_config: bool = False
    """Whether similar configs keep separate rows, for programs that measure them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "objective", objective_named(self.objective))
        if self.inputs not in INPUTS:
            raise unknown("inputs", self.inputs, INPUTS)
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

        # Compute these once, because each request compares them.
        point = OperatingPoint(self.power_limit_w, self.clock_hz)
        hashed = hash((self.objective, self.max_slowdown, self.max_power_w, point, self.top, self.source))
        vars(self).update(_point=point, _hash=hashed)

    def __hash__(self) -> int:
        hashed: int = vars(self)["_hash"]
        return hashed

    @property
    def point(self) -> OperatingPoint:
        """Requested operating point."""
        point: OperatingPoint = vars(self)["_point"]
        return point


@dataclass(frozen=True)
class Request:
    """Problem, GPU and query, with names as people type them; exactly one of `op` and `kernel` is given.

    An op considers every kernel that implements it. A kernel, from the user or the library, is considered alone.
    `sweep` determines the operating points.
    """

    gpu: str
    op: str | None = None
    kernel: str | None = None
    shape: str | Mapping[str, int] = field(default_factory=dict)
    """Dimensions as text (`m=1,n=2,k=3`) or by name; missing ones take the default of the op or spec."""
    dtype: str | None = None
    """Data type; the first one of the op or kernel by default."""
    layout: str | None = None
    """Tensor layout. The default is the best one on the GPU for an op, and the first one for a kernel."""
    query: Query = field(default_factory=Query)

    def __post_init__(self) -> None:
        if (self.op is None) == (self.kernel is None):
            raise UsageError("a request names an op or a kernel, exactly one of them")

    @property
    def dims(self) -> Mapping[str, int]:
        """Dimensions by name."""
        return parse_shape(self.shape) if isinstance(self.shape, str) else self.shape

    def problem_of(self, kernel: "Kernel | None" = None) -> Problem:
        """Return the problem of the request's op, or of the given kernel."""
        if kernel is None:
            return find_op(self.op or "").problem(self.dtype, self.layout, **self.dims)
        dtype, layout = self.dtype or kernel.dtypes[0], self.layout or kernel.layouts[0]
        return kernel.definition.problem(dtype, layout, **self.dims)


POWER_LIMITS = 8
"""Number of power limits in a sweep, from the GPU's minimum to its maximum or default."""
CLOCKS = 8
"""Number of locked core clocks in a sweep, up to the boost clock."""
CLOCK_STEP_HZ = 15e6
"""Step between core clocks of NVIDIA GPUs, 15 MHz (`nvidia-smi -q -d SUPPORTED_CLOCKS`)."""


def power_limits(gpu: GPU) -> list[float]:
    """Return the power limits of a kernel's sweep in whole watts."""
    return list(_steps(gpu.power_min_w, gpu.power_max_w))


def sweep(gpu: GPU, limits: Sequence[float]) -> list[OperatingPoint]:
    """Return the operating points at the default power limit, then at `limits`."""
    return [OperatingPoint(limit) for limit in dict.fromkeys([gpu.tdp_w, *limits])]


def lower_limits(gpu: GPU) -> tuple[OperatingPoint, ...]:
    """Return the power limits of an op's sweep below the default.

    A board may accept more than its default, but users who ask for a config do not expect to raise the limit.
    """
    return _points_below(gpu.power_min_w, gpu.tdp_w)


def lowest_clock_hz(gpu: GPU) -> float:
    """Return the lowest core clock of a sweep in Hz."""
    return PowerModel.for_gpu(gpu).minimum_hz


def clocks(gpu: GPU, limit_w: float | None) -> tuple[OperatingPoint, ...]:
    """Return the locked core clocks of a sweep at a power limit."""
    steps = np.linspace(lowest_clock_hz(gpu), gpu.boost_clock_hz, CLOCKS + 1)[1:]
    return tuple([OperatingPoint(limit_w, float(step // CLOCK_STEP_HZ * CLOCK_STEP_HZ)) for step in steps])


def op_points(gpu: GPU, query: Query) -> tuple[OperatingPoint, ...]:
    """Return the operating points of a request about an op: the requested point, then the points of a sweep."""
    if query.clock_hz is not None:
        return (query.point,)
    swept = query.objective is not Objective.LATENCY and query.power_limit_w is None
    limits = lower_limits(gpu) if swept else ()
    if (most_w := query.max_power_w) is not None and query.power_limit_w is None and gpu.power_min_w <= most_w:
        # A limit at the bound keeps every config within it, and a lower limit costs time.
        limits = (*limits, OperatingPoint(most_w)) if most_w < gpu.tdp_w else limits
    return (query.point, *limits, *(clocks(gpu, query.power_limit_w) if query.clocks else ()))


def kernel_points(gpu: GPU, query: Query, evidence: Evidence, kernel: Kernel) -> list[OperatingPoint]:
    """Return the operating points of a request about one kernel, default first.

    The requested limit follows. Without a request, a range of limits and all measured limits follow.
    """
    if query.power_limit_w is None:
        limits = [*power_limits(gpu), *measured_limits(gpu, evidence, [kernel])]
    else:
        limits = [query.power_limit_w]
    return [*sweep(gpu, limits), *(clocks(gpu, query.power_limit_w) if query.clocks else ())]


def measured_limits(gpu: GPU, evidence: Evidence, kernels: Iterable[Kernel]) -> list[float]:
    """Return the power limits at which kernels were measured on a GPU, ascending."""
    if not evidence.measured:
        return []
    hashes = {kernel.hash for kernel in kernels}
    limits = {row.power_limit_w for row in evidence.measured if row.kernel_hash in hashes}
    return sorted(limit for limit in limits if limit and gpu.power_min_w <= limit <= gpu.power_max_w)


@lru_cache
def _steps(least_w: float, most_w: float) -> tuple[float, ...]:
    return tuple([round(float(limit)) for limit in np.linspace(least_w, most_w, POWER_LIMITS)])


@lru_cache
def _points_below(least_w: float, most_w: float) -> tuple[OperatingPoint, ...]:
    return tuple([OperatingPoint(limit) for limit in _steps(least_w, most_w) if limit < most_w])
