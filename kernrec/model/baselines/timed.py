"""Predict times and powers of backends for problems of one kind on one GPU, in one pass over features and trees."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import exp, hypot, inf
from operator import itemgetter
from typing import Any

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.analytical.spread import Estimate, Source
from kernrec.model.baselines.backends import versions_text
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
from kernrec.model.baselines.recorded_set import BACKEND, NORMAL_S, OTHER, Head, SetModel
from kernrec.model.learn.conformal import Interval, factor_at
from kernrec.op import Problem
from kernrec.op.scaled_workload import padded_dimension
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

_FAMILY = {"sm_103": "sm_100"}
"""Architectures that use another architecture's trees: a B300 has the tensor cores of a B200."""
_USED = tuple(f"share.used.{part}" for part in PARTS)
"""Names of the features that `used` returns."""
_NONE = np.empty((0, 1, 1))
_FARTHEST = {"elementwise": 1 << 20}
"""Largest number of items that bounds the time of fewer items, by op. For elementwise ops, this many items take longer
than a launch."""
_FARTHEST_ELSE = 1 << 14
"""Largest number of items for other ops."""


@dataclass(frozen=True, eq=False)
class Reader:
    """Trees of a quantity, prepared to read the features of problems of one kind."""

    in_engine: Any
    """Trees with the features that problems of the kind share, in the engine's form."""
    backends: int
    """Number S of backends."""
    names: tuple[str, ...]
    """Names of the features in a table."""
    own: tuple[str, ...]
    """Names of the features from `used` that the trees read; they differ between backends."""
    recorded: Interval
    between: Interval
    """Interval of the trees, wider if another data type or layout was recorded."""
    transferred: bool
    """Whether the quantity was not recorded on this GPU."""

    def corrected(self, table: Array, own: Mapping[str, Array], base: Array, least: Array, most: float) -> Array:
        """Apply the trees' correction to `base`, (S, N).

        Args:
            table: Features, (F, N).
            own: Features that differ between backends, (S, N) each.
            base: Values to correct, (S, N), or (1, N) if equal for all backends.
            least: Minimum values, (N,).
            most: Maximum value.
        """
        values = np.empty((self.backends, table.shape[1]))
        of_backends = np.array([own[name] for name in self.own]) if self.own else _NONE
        self.in_engine.fill(table, of_backends, base, least, most, values)
        return values

    def factors_at(self, distances: Array | None, off_grid: Sequence[bool]) -> list[float]:
        """Return the factor from each problem's value to either end of its interval. See `Timed` for the arguments."""
        if self.transferred:
            off_grid = [False] * len(off_grid)
        if distances is None:
            return list(map(self._factors.__getitem__, off_grid))
        widths = np.where(off_grid, self.between.width, self.recorded.width)
        factors: list[float] = factor_at(widths, distances).tolist()
        return factors

    @cached_property
    def _factors(self) -> tuple[float, float]:
        return exp(self.recorded.width), exp(self.between.width)

    def predicted(self, value: float, factor: float, most: float) -> Estimate:
        """Return a value with its interval, limited to `most`."""
        source = Source.TRANSFERRED if self.transferred else Source.LEARNED
        return Estimate(value, value / factor, min(value * factor, most), source)


@dataclass(frozen=True, eq=False)
class Kind:
    """Problems of one data type and layout in a set, on one GPU, and S backends that run them."""

    chosen: SetModel
    backends: tuple[str, ...]
    gpu: GPU
    dtype: str
    layout: str

    @cached_property
    def features(self) -> Features:
        """Return the module of the op's features."""
        return features_of(self.chosen.recorded.op)

    @cached_property
    def dims_of(self) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
        """Return a function that maps a problem to the sizes of the features' dimensions, in order."""
        first, *others = self.features.DIMS
        return itemgetter(first, *others) if others else lambda sizes: (sizes[first],)

    @cached_property
    def items(self) -> tuple[int, int, int]:
        """Return the dimension that counts the items of one matmul, and of several, -1 for none; and the largest count
        that bounds the time of fewer items.
        """
        op, dims = self.chosen.recorded.op, self.features.DIMS
        names = [padded_dimension(op, self.layout, batched and dims[0] == "batch") for batched in (False, True)]
        alone, together = (dims.index(name) if name in dims else -1 for name in names)
        return alone, together, _FARTHEST.get(op, _FARTHEST_ELSE)

    @cached_property
    def device(self) -> Device:
        """Return the GPU's rates for problems of this kind."""
        timing = self.chosen.recorded.timing
        return device_of(
            self.gpu, self.dtype, replace(timing, sustained=True) if self.head("latency").sustained else timing
        )

    @cached_property
    def alike(self) -> float:
        """Return the additional logarithmic width of intervals if another data type or layout was recorded."""
        recorded = self.chosen.recorded
        exactly = self.dtype in recorded.dtypes and self.layout in recorded.layouts
        return 0.0 if exactly else recorded.alike_width

    @cached_property
    def versions(self) -> list[str | None]:
        """Return each backend's version: the recorded version on the GPU, or the range of versions on other GPUs."""
        recorded, name = self.chosen.recorded.backends, self.gpu.name
        every = (
            [devices[name]] if name in devices else devices.values()
            for devices in map(recorded.__getitem__, self.backends)
        )
        return [versions_text(versions) for versions in every]

    @property
    def _nearest(self) -> tuple[str, str, str]:
        """Return the keys of the GPU's trees, nearest first: the GPU, its architecture, then `OTHER`."""
        return self.gpu.name, _FAMILY.get(self.gpu.arch, self.gpu.arch), OTHER

    def head(self, quantity: str) -> Head:
        """Return the nearest trees of a quantity."""
        heads = self.chosen.heads
        return next(heads[quantity, name] for name in self._nearest if (quantity, name) in heads)

    @cached_property
    def recorded_as(self) -> str | None:
        """Return the recorded data type and layout, if they differ."""
        recorded = self.chosen.recorded
        return f"{recorded.dtypes[0]}, {recorded.layouts[0]}" if self.alike else None

    def reader(self, quantity: str, bound: Bound) -> Reader:
        """Return the trees of a quantity, prepared for a bound's table; cached for tables with the same names."""
        reader = self._readers.get(quantity)
        if reader is None or reader.names != bound.names:
            reader = self._readers[quantity] = self._new_reader(quantity, bound)
        return reader

    @cached_property
    def _readers(self) -> dict[str, Reader]:
        return {}

    def _new_reader(self, quantity: str, bound: Bound) -> Reader:
        head, transferred = self.head(quantity), (quantity, self.gpu.name) not in self.chosen.heads
        rows = np.zeros((len(self.backends), len(head.columns)), dtype=np.float32)
        for name, value in bound.constants.items():
            if (column := head.column.get(name)) is not None:
                rows[:, column] = value
        for number, backend in enumerate(self.backends):
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
        return Reader(in_engine, len(self.backends), bound.names, own, recorded, between, transferred)


@dataclass(frozen=True, eq=False)
class Timed:
    """Times of N problems of a kind for each backend that runs them. Power is computed on demand."""

    kind: Kind
    bound: Bound
    distances: Array | None
    """Distances from the recordings, (N,); None if all are within them."""
    off_grid: list[bool]
    """Whether the sizes of each problem were not recorded."""
    seconds: Array
    """Seconds of each backend and problem with the recorder's timing, (S, N)."""
    factors: list[float]
    """Interval factors of each problem's seconds."""

    @classmethod
    def of(cls, kind: Kind, problems: Sequence[Problem]) -> "Timed":
        """Compute features and times of problems."""
        chosen, flat, off_grid = kind.chosen, list[int](), list[bool]()
        for problem in problems:
            flat += kind.dims_of(problem.sizes)
            off_grid.append(chosen.off_grid(problem.sizes))
        more = query.MoreItems(np.array(flat, dtype=float).reshape(len(problems), -1), *kind.items)
        sizes = more.sizes
        bound = kind.features.bound(kind.device, sizes.T, kind.layout)
        if kind.device.timing.sustained:  # Power and the roof use the data sheet's rate.
            share = kind.device.peak_flops / rate_of(kind.gpu, kind.dtype)
            bound = replace(bound, parts={**bound.parts, "math": bound.parts["math"] * share})
        reader = kind.reader("latency", bound)
        # Trees trained on other GPUs could predict times below this GPU's roof.
        least = bound.parts["math"] if reader.transferred else np.zeros(len(sizes))
        seconds = reader.corrected(bound.table, {}, bound.total_s[np.newaxis], least, inf)
        if len(sizes) > len(problems):
            at_points, seconds = seconds, np.empty((len(seconds), len(problems)))
            more.order(bound.total_s, at_points, seconds)
            bound = bound.at(more.starts)
        distances = chosen.outside(bound)
        return cls(kind, bound, distances, off_grid, seconds, reader.factors_at(distances, off_grid))

    @cached_property
    def power(self) -> tuple[Array, list[float]] | None:
        """Return watts, (S, N), and the factors of their intervals; None if power was not recorded."""
        chosen, gpu, seconds = self.kind.chosen, self.kind.gpu, self.seconds
        if ("power", OTHER) not in chosen.heads:
            return None
        base = np.full(seconds.shape, gpu.tdp_w)
        if (bases := chosen.power_bases) is not None:
            base = (bases.get(gpu.name) or power_base(gpu)).watts(self.bound, seconds, gpu.tdp_w)
        reader, least = self.kind.reader("power", self.bound), np.zeros(len(self.bound.total_s))
        watts = reader.corrected(self.bound.table, used(self.bound, seconds), base, least, gpu.tdp_w)
        return watts, reader.factors_at(self.distances, self.off_grid)

    def fastest(self, number: int) -> int:
        """Return the index of the fastest backend for a problem; also valid if calls were timed one at a time."""
        return int(self.seconds[:, number].argmin()) if len(self.seconds) > 1 else 0

    def latency(self, place: int, number: int) -> tuple[str, Estimate, float]:
        """Return a backend's name, its latency for a problem, and the seconds of the launch in this latency."""
        kind, chosen, bound = self.kind, self.kind.chosen, self.bound
        launch_s = NORMAL_S if chosen.floors else bound.parts["launch"].item(number)
        reader = kind.reader("latency", bound)
        call = reader.predicted(self.seconds.item(place, number), self.factors[number], inf)
        return kind.backends[place], chosen.streamed(call, kind.gpu, bound, number), launch_s

    def predictions(self, number: int) -> Iterator[BaselinePrediction]:
        """Yield the predictions for a problem."""
        kind, gpus = self.kind, self.kind.chosen.recorded.gpus
        busy = {name: seconds.item(number) for name, seconds in self.bound.parts.items()}
        for place in range(len(kind.backends)):
            backend, latency_s, launch_s = self.latency(place, number)
            power_w = None
            if self.power is not None:
                (watts, factors), reader = self.power, kind.reader("power", self.bound)
                power_w = reader.predicted(watts.item(place, number), factors[number], kind.gpu.tdp_w)
            every = busy | {"launch": launch_s}
            yield BaselinePrediction(backend, kind.versions[place], latency_s, power_w, gpus, kind.recorded_as, every)
