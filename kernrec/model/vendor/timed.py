"""The times and powers of stacks for problems of one kind on one card, all in one pass over features and trees."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import hypot
from typing import Any

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.learn.conformal import Interval
from kernrec.model.vendor.bound import Bound, Card, Features, card_of, features_of, used
from kernrec.model.vendor.compact_trees import CompactTrees
from kernrec.model.vendor.power_base import power_base
from kernrec.model.vendor.predicted import Predicted, StackPrediction
from kernrec.model.vendor.recorded_set import OTHER, STACK, Head, SetModel
from kernrec.model.vendor.single_calls import NORMAL_S
from kernrec.op import Problem
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

_MOST_RATIO = 20.0
"""Largest logarithm of a correction; only trees that no training made go beyond it."""


@dataclass(frozen=True, eq=False)
class Reader:
    """How trees of a quantity read the features of problems of a kind: laid out once."""

    head: Head
    rows: Array
    """Rows of the trees' features for each stack, of which those that problems differ in are 0, float32 (S, 1, F)."""
    columns: Array
    """The features that problems differ in, by their place in these rows."""
    places: Array
    """The same by their place in a table of features."""
    recorded: Interval
    between: Interval
    """As those of the head, wider where another data type or layout was recorded."""

    @cached_property
    def trees(self) -> CompactTrees:
        """The trees of the head."""
        return self.head.trees

    @cached_property
    def factors(self) -> tuple[Any, Any]:
        """The factors of both intervals inside of what was recorded."""
        return np.exp(self.recorded.width), np.exp(self.between.width)


@dataclass(frozen=True, eq=False)
class Kind:
    """Problems of one data type and layout that a set covers, on one card, and S stacks that run them."""

    chosen: SetModel
    stacks: tuple[str, ...]
    gpu: GPU
    dtype: str
    layout: str

    @cached_property
    def features(self) -> Features:
        """The module of the op's features."""
        return features_of(self.chosen.recorded.op)

    @cached_property
    def card(self) -> Card:
        """The card as such problems see it."""
        return card_of(self.gpu, self.dtype, self.chosen.recorded.timing)

    @cached_property
    def alike(self) -> float:
        """Logarithmic width that intervals have more, since another data type or layout was recorded."""
        recorded = self.chosen.recorded
        exactly = self.dtype in recorded.dtypes and self.layout in recorded.layouts
        return 0.0 if exactly else recorded.alike_width

    @cached_property
    def versions(self) -> list[str | None]:
        """Of each stack, as it was recorded on the card."""
        return [self.chosen.recorded.stacks[stack].get(self.gpu.name) for stack in self.stacks]

    @cached_property
    def recorded_as(self) -> str | None:
        """Data type and layout that were recorded, where they are others."""
        recorded = self.chosen.recorded
        return f"{recorded.dtypes[0]}, {recorded.layouts[0]}" if self.alike else None

    def transferred(self, quantity: str) -> bool:
        """Whether nobody recorded a quantity on the card."""
        return (quantity, self.gpu.name) not in self.chosen.heads

    def reader(self, quantity: str, bound: Bound) -> Reader:
        """How the trees of a quantity read the table of a bound; made once for tables with the same names."""
        key = quantity, bound.names
        if (reader := self._readers.get(key)) is None:
            reader = self._readers[key] = self._new_reader(quantity, bound)
        return reader

    @cached_property
    def _readers(self) -> dict[tuple[str, tuple[str, ...]], Reader]:
        return {}

    def _new_reader(self, quantity: str, bound: Bound) -> Reader:
        head = self.chosen.heads[quantity, OTHER if self.transferred(quantity) else self.gpu.name]
        rows = np.zeros((len(self.stacks), 1, len(head.columns)), dtype=np.float32)
        for name, value in bound.constants.items():
            if (column := head.column.get(name)) is not None:
                rows[:, :, column] = value
        for number, stack in enumerate(self.stacks):
            if (column := head.column.get(STACK + stack)) is not None:
                rows[number, :, column] = 1.0
        there = [(column, bound.names.index(name)) for name, column in head.column.items() if name in bound.names]
        columns, places = np.array(there, dtype=np.int64).reshape(-1, 2).T
        recorded, between = head.recorded, head.between
        if self.alike:
            recorded, between = (replace(each, width=hypot(each.width, self.alike)) for each in (recorded, between))
        return Reader(head, rows, columns, places, recorded, between)


@dataclass(frozen=True, eq=False)
class Timed:
    """N problems of a kind and the stacks that run them; power is lazy."""

    kind: Kind
    bound: Bound
    distances: Array | None
    """From what was recorded, (N,); None where all are inside of it."""
    off_grid: Array | None
    """Whether the sizes of each problem were not recorded, bool (N,); None where all were."""

    @classmethod
    def of(cls, kind: Kind, problems: Sequence[Problem]) -> "Timed":
        """The features of problems."""
        chosen, every = kind.chosen, [problem.sizes for problem in problems]
        sizes = np.array([[sizes[name] for sizes in every] for name in kind.features.DIMS], dtype=float)
        bound = kind.features.bound(kind.card, sizes, kind.layout)
        on_grid = [all(s[name] in sizes for name, sizes in chosen.sizes.items()) for s in every]
        off_grid = None if all(on_grid) else ~np.array(on_grid, dtype=bool)
        return cls(kind, bound, chosen.outside(bound), off_grid)

    @cached_property
    def latency(self) -> list[list[Predicted]]:
        """Seconds: for each problem a list of stacks."""
        return self._quantity("latency", self.bound.total_s, np.inf, {})

    @cached_property
    def power(self) -> list[list[Predicted]] | None:
        """Watts, as `latency`; None where nobody recorded power."""
        chosen, gpu = self.kind.chosen, self.kind.gpu
        if ("power", OTHER) not in chosen.heads:
            return None
        seconds = np.array([[predicted.value for predicted in part] for part in self.latency]).T
        base = np.full(seconds.shape, gpu.tdp_w)
        if (bases := chosen.power_bases) is not None:
            base = (bases.get(gpu.name) or power_base(gpu)).watts(self.bound, seconds, gpu.tdp_w)
        return self._quantity("power", base, gpu.tdp_w, used(self.bound, seconds))

    def seconds(self, number: int) -> Iterator[tuple[str, float]]:
        """Each stack with its latency for one of the problems."""
        for stack, latency in zip(self.kind.stacks, self.latency[number], strict=True):
            yield stack, self.kind.chosen.streamed(latency, self.kind.gpu, self.bound, number).value

    def predictions(self, number: int, with_power: bool) -> Iterator[StackPrediction]:
        """Those of one of the problems."""
        kind, chosen = self.kind, self.kind.chosen
        busy = {name: seconds.item(number) for name, seconds in self.bound.parts.items()}
        if chosen.floors:
            busy["launch"] = NORMAL_S
        latency, power, gpus = self.latency[number], self.power if with_power else None, chosen.recorded.gpus
        for place, stack in enumerate(kind.stacks):
            watts = None if power is None else power[number][place]
            latency_s = chosen.streamed(latency[place], kind.gpu, self.bound, number)
            yield StackPrediction(stack, kind.versions[place], latency_s, watts, gpus, kind.recorded_as, busy)

    def _quantity(self, name: str, base: Array, most: float, more: Mapping[str, Array]) -> list[list[Predicted]]:
        """A quantity: for each problem a list of stacks.

        Args:
            name: `latency` or `power`.
            base: the trees correct it, (N,) or (S, N).
            most: no value is larger.
            more: features that differ between stacks, (S, N) each.
        """
        reader, count = self.kind.reader(name, self.bound), len(self.bound.total_s)
        rows = reader.rows.repeat(count, axis=1)
        rows[:, :, reader.columns] = self.bound.table.take(reader.places, axis=0).T
        for feature, values in more.items():
            if (column := reader.head.column.get(feature)) is not None:
                rows[:, :, column] = values
        ratios = reader.trees.predict(rows.reshape(-1, rows.shape[2])).reshape(rows.shape[:2])
        values = base * np.exp(np.minimum(np.maximum(ratios, -_MOST_RATIO), _MOST_RATIO))
        if (transferred := self.kind.transferred(name)) and name == "latency":
            # Trees that learned other cards could pass the roof of this one.
            values = np.maximum(values, self.bound.parts["math"])
        values = np.minimum(values, most)
        off_grid = None if transferred else self.off_grid
        if all_off := off_grid is not None and bool(off_grid.all()):
            off_grid = None
        if self.distances is None and off_grid is None:
            low, high = values / reader.factors[all_off], values * reader.factors[all_off]
        else:
            distances = np.zeros(count) if self.distances is None else self.distances
            low, high = (reader.between if all_off else reader.recorded).around(values, distances)
            if off_grid is not None:
                low[:, off_grid], high[:, off_grid] = reader.between.around(values[:, off_grid], distances[off_grid])
        ends = zip(values.T.tolist(), low.T.tolist(), np.minimum(high, most).T.tolist(), strict=True)
        return [[Predicted(*each, transferred) for each in zip(*of_problem, strict=True)] for of_problem in ends]
