"""Predict the times and powers of backends for several problems of one kind on one GPU together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import hypot, inf
from operator import itemgetter
from typing import Any

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.analytical.spread import Estimate, Source
from kernrec.model.baselines.backends import AT, supports, versions_text
from kernrec.model.baselines.bound import (
    PARTS,
    BaselinePrediction,
    Bound,
    Device,
    Features,
    device_of,
    features_of,
    power_base,
    rate_of,
    used,
)
from kernrec.model.baselines.recorded_set import BACKEND, NORMAL_S, OTHER, Head, SetModel, in_a_stream
from kernrec.model.learn.conformal import PRIOR, Interval
from kernrec.op import Problem
from kernrec.op.scaled_workload import padded_dimension
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

_FAMILY = {"sm_103": "sm_100"}
"""Architectures that use the trees of another architecture. A B300 has the tensor cores of a B200."""
_USED = tuple(f"share.used.{part}" for part in PARTS)
_NONE = np.empty((0, 1))
_FARTHEST = {"elementwise": 1 << 20}
"""Largest number of items (rows, images or sequences) to which problems are padded, keyed by op. The time of a padded
problem is an upper limit for the original problem, because backends can pad, too."""
_FARTHEST_ELSE = 1 << 14


@dataclass(frozen=True, eq=False)
class Reader:
    """Trees of one quantity, prepared for problems of one kind."""

    in_engine: Any
    """Engine object with the trees."""
    backends: tuple[str, ...]
    """Names of the S backends."""
    names: tuple[str, ...]
    """Names of the features in `Bound.table`."""
    own: tuple[str, ...]
    """Names of the features from `bound.used` that the trees read."""
    recorded: Interval
    between: Interval
    """Interval for unrecorded sizes. `recorded` is the interval for recorded sizes."""
    transferred: bool
    """Whether the trees come from other GPUs."""
    overheads_s: Array
    """Seconds that each backend adds to the bound, (backends,)."""

    def factors(self, times: Any, off_grid: list[bool]) -> list[float]:
        """Return the factor between each problem's prediction and either end of its interval.

        The arguments are `in_engine` and `off_grid` of `Timed`.
        """
        recorded, between = self.recorded.width, self.recorded.width if self.transferred else self.between.width
        factors: list[float] = times.factors(off_grid, recorded, between, PRIOR)
        return factors

    def predicted(self, value: float, factor: float, most: float) -> Estimate:
        """Return an estimate with the interval from `value / factor` to the smaller of `value * factor` and `most`."""
        source = Source.TRANSFERRED if self.transferred else Source.LEARNED
        return Estimate(value, value / factor, min(value * factor, most), source)


@dataclass(frozen=True, eq=False)
class Kind:
    """Problems of one data type and layout from a recorded set, on one GPU."""

    chosen: SetModel
    gpu: GPU
    dtype: str
    layout: str

    @cached_property
    def on_gpu(self) -> bool:
        """Return whether `chosen` has recordings on the GPU."""
        return self.gpu.name in self.chosen.recorded.gpus

    def backends_for(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Return the backends for which `chosen` can predict the time of a problem on the GPU."""
        kind = self._recorded_dtype if self._kind is None else self._kind(self._recorded_dtype, sizes)
        if (backends := self._backends_for.get(kind)) is None:
            backends = self._backends_for[kind] = tuple(self._with_recordings(kind))
        return backends

    @cached_property
    def _recorded_dtype(self) -> str:
        dtypes = self.chosen.recorded.dtypes
        return self.dtype if self.dtype in dtypes else dtypes[0]

    @cached_property
    def _kind(self) -> Callable[[str, Mapping[str, int]], str] | None:
        return getattr(self.features, "kind", None)

    @cached_property
    def _backends_for(self) -> dict[str, tuple[str, ...]]:
        return {}

    def _with_recordings(self, kind: str) -> Iterator[str]:
        recorded, here = self.chosen.recorded, self.gpu.name
        for backend, devices in recorded.backends.items():
            names = devices if not self.on_gpu else [here] if here in devices else []
            if (
                AT not in backend
                and supports(backend, self.gpu.sm)
                and (self.on_gpu or backend not in recorded.local)
                and any(kind in recorded.kinds.get(backend, {}).get(name, (kind,)) for name in names)
            ):
                yield backend

    @cached_property
    def superseded(self) -> tuple[str, ...]:
        """Return the old versions of backends that were recorded on the GPU, such as `vLLM@0.14.0`."""
        backends = self.chosen.recorded.backends.items()
        return tuple(backend for backend, devices in backends if AT in backend and self.gpu.name in devices)

    @cached_property
    def features(self) -> Features:
        return features_of(self.chosen.recorded.op)

    @cached_property
    def dims_of(self) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
        """Return a function that selects the sizes of `DIMS` from a problem's sizes."""
        first, *others = self.features.DIMS
        return itemgetter(first, *others) if others else lambda sizes: (sizes[first],)

    @cached_property
    def items(self) -> tuple[int, int, int]:
        """Return (dimension to pad, dimension to pad in batched problems, maximum size after padding). A dimension is
        an index in `DIMS`, or -1 for no padding."""
        op, dims = self.chosen.recorded.op, self.features.DIMS
        names = [padded_dimension(op, self.layout, batched and dims[0] == "batch") for batched in (False, True)]
        alone, together = (dims.index(name) if name in dims else -1 for name in names)
        return alone, together, _FARTHEST.get(op, _FARTHEST_ELSE)

    @cached_property
    def device(self) -> Device:
        timing = self.chosen.recorded.timing
        return device_of(
            self.gpu, self.dtype, replace(timing, sustained=True) if self.head("latency").sustained else timing
        )

    @cached_property
    def alike(self) -> float:
        """Return the log of a factor that widens intervals if only other data types or layouts were recorded, or 0."""
        recorded = self.chosen.recorded
        exactly = self.dtype in recorded.dtypes and self.layout in recorded.layouts
        return 0.0 if exactly else recorded.alike_width

    @cached_property
    def versions(self) -> dict[str, str | None]:
        """Return the recorded version of each backend on this GPU, or else the range of its versions on other GPUs."""
        name = self.gpu.name
        return {
            backend: versions_text([devices[name]] if name in devices else devices.values())
            for backend, devices in self.chosen.recorded.backends.items()
        }

    @cached_property
    def floor(self) -> tuple[float, float] | None:
        floors = self.chosen.floors
        # An unrecorded GPU gets the shortest recorded time of an empty call.
        return floors.get(self.gpu.name) or min(floors.values()) if floors else None

    @cached_property
    def math_share(self) -> float:
        """Return the rate of arithmetic that `Bound` assumes, divided by the data sheet's rate."""
        return self.device.peak_flops / rate_of(self.gpu, self.dtype) if self.device.timing.sustained else 1.0

    def head(self, quantity: str) -> Head:
        """Return the trees of a quantity for the GPU, or else for its architecture, or else for all other GPUs."""
        heads, nearest = self.chosen.heads, (self.gpu.name, _FAMILY.get(self.gpu.arch, self.gpu.arch), OTHER)
        return next(heads[quantity, name] for name in nearest if (quantity, name) in heads)

    @cached_property
    def recorded_as(self) -> str | None:
        """Return the data type and layout of the recordings, or None if the problems have this data type and layout."""
        recorded = self.chosen.recorded
        return f"{recorded.dtypes[0]}, {recorded.layouts[0]}" if self.alike else None

    def bound(self, more: Any) -> Any:
        """Return minimum times and features of the problems in `more`. Input and result are objects of the engine."""
        if (products := getattr(self.features, "products", None)) is not None:
            return products(self.device, self.layout).bound(more.sizes)
        return self.features.bound(self.device, more.sizes, self.layout).in_engine

    def reader(self, quantity: str, backends: tuple[str, ...], bound: Any) -> Reader:
        reader = self._readers.get((quantity, backends))
        if reader is None or reader.names != bound.names:
            reader = self._readers[quantity, backends] = self._new_reader(quantity, backends, bound)
        return reader

    @cached_property
    def _readers(self) -> dict[tuple[str, tuple[str, ...]], Reader]:
        return {}

    def _new_reader(self, quantity: str, backends: tuple[str, ...], bound: Any) -> Reader:
        head, transferred = self.head(quantity), (quantity, self.gpu.name) not in self.chosen.heads
        rows = np.zeros((len(backends), len(head.columns)), dtype=np.float32)
        for name, value in bound.constants.items():
            if (column := head.column.get(name)) is not None:
                rows[:, column] = value
        for number, backend in enumerate(backends):
            if (column := head.column.get(BACKEND + backend)) is not None:
                rows[number, column] = 1.0
        there = [(column, bound.names.index(name)) for name, column in head.column.items() if name in bound.names]
        columns, places = np.array(there, dtype=np.int64).reshape(-1, 2).T.copy()
        own = tuple(name for name in head.column if name in _USED)
        own_columns = np.array([head.column[name] for name in own], dtype=np.int64)
        in_engine = query.Reader(head.trees.in_engine, rows, columns, places, own_columns)
        recorded, between = head.recorded, head.between
        if self.alike:
            recorded, between = (replace(each, width=hypot(each.width, self.alike)) for each in (recorded, between))
        overheads_s = np.array([head.overheads_s.get(backend, 0.0) for backend in backends])
        return Reader(in_engine, backends, bound.names, own, recorded, between, transferred, overheads_s)


@dataclass(frozen=True, eq=False)
class Timed:
    """Predicted times of N problems of one kind for each of S backends."""

    kind: Kind
    reader: Reader
    """Trees that predicted the times."""
    more: Any
    """Engine's `MoreItems`: the problems and their padded variants, which limit the problems' times."""
    in_engine: Any
    """Engine's `BackendTimes`."""
    off_grid: list[bool]
    """Whether each problem has an unrecorded size in a dimension of `RecordedSet.grid`."""
    factors: list[float]
    """Factor between each problem's time and either end of its interval."""

    @classmethod
    def of(cls, kind: Kind, backends: tuple[str, ...], problems: Sequence[Problem]) -> "Timed":
        """Predict the time of each backend for each problem."""
        chosen, flat = kind.chosen, [size for problem in problems for size in kind.dims_of(problem.sizes)]
        off_grid = [chosen.off_grid(problem.sizes) for problem in problems]
        more = query.MoreItems(flat, len(problems), *kind.items)
        bound = kind.bound(more)
        reader = kind.reader("latency", backends, bound)
        # Trees that were trained on other GPUs could predict times below this GPU's roof, so limit the times.
        least = kind.math_share if reader.transferred else 0.0
        times = query.BackendTimes(more, bound, reader.in_engine, reader.overheads_s, least, *chosen.extents)
        return cls(kind, reader, more, times, off_grid, reader.factors(times, off_grid))

    @cached_property
    def seconds(self) -> Array:
        """Seconds that the recorder would measure for each backend and problem, (backends, N)."""
        return np.asarray(self.in_engine.seconds.T)

    @cached_property
    def bound(self) -> Bound:
        """Return lower bounds on the times of the N problems. Arithmetic runs at the data sheet's rate."""
        bound = Bound.of(self.kind.bound(self.more)).at(self.more.starts)
        return replace(bound, parts={**bound.parts, "math": bound.parts["math"] * self.kind.math_share})

    @cached_property
    def power(self) -> tuple[Reader, Array, list[float]] | None:
        """Return (reader of the trees for power, watts of shape (backends, N), factor from the power to the upper end
        of each problem's interval). Return None if no power was recorded."""
        chosen, gpu, seconds = self.kind.chosen, self.kind.gpu, self.seconds
        if ("power", OTHER) not in chosen.heads:
            return None
        base = np.full(seconds.shape, gpu.tdp_w)
        if (bases := chosen.power_bases) is not None:
            base = (bases.get(gpu.name) or power_base(gpu)).watts(self.bound, seconds, gpu.tdp_w)
        reader = self.kind.reader("power", self.reader.backends, self.bound)
        own = used(self.bound, seconds)
        of_backends = np.concatenate([own[name] for name in reader.own]) if reader.own else _NONE
        least, watts = np.zeros(len(self.bound.total_s)), np.empty(seconds.shape)
        reader.in_engine.fill(self.bound.table, of_backends, base, least, gpu.tdp_w, watts)
        return reader, watts, reader.factors(self.in_engine, self.off_grid)

    def latency(self, number: int, place: int = -1) -> tuple[str, Estimate, float]:
        """Return (name of a backend, latency, seconds of an empty launch) for problem `number`.

        `place` is the index of the backend. -1 selects the fastest backend.
        """
        # The conversion `in_a_stream` does not change which backend is fastest.
        place, seconds, launch_s, work_s = self.in_engine.of(place, number)
        call = self.reader.predicted(seconds, self.factors[number], inf)
        if (floor := self.kind.floor) is None:
            return self.reader.backends[place], call, launch_s
        floor_s, ratio = floor
        return self.reader.backends[place], in_a_stream(call, floor_s, ratio * work_s), NORMAL_S

    def predictions(self, number: int) -> Iterator[BaselinePrediction]:
        """Yield the prediction of each backend for the problem with the index `number`."""
        kind, gpus = self.kind, self.kind.chosen.recorded.gpus
        busy = {name: seconds.item(number) for name, seconds in self.bound.parts.items()}
        for place in range(len(self.reader.backends)):
            backend, latency_s, launch_s = self.latency(number, place)
            power_w = None
            if self.power is not None:
                reader, watts, factors = self.power
                power_w = reader.predicted(watts.item(place, number), factors[number], kind.gpu.tdp_w)
            every = busy | {"launch": launch_s}
            yield BaselinePrediction(backend, kind.versions[backend], latency_s, power_w, gpus, kind.recorded_as, every)
