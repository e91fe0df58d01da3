"""The times and powers of stacks for problems of one kind on one card, all in one pass over features and trees."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import hypot

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.vendor.bound import Bound, feature_table, features_of, used
from kernrec.model.vendor.power_base import power_base
from kernrec.model.vendor.predicted import Predicted, StackPrediction
from kernrec.model.vendor.recorded_set import OTHER, STACK, SetModel
from kernrec.model.vendor.single_calls import NORMAL_S
from kernrec.op import Problem
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

_MOST_RATIO = 20.0
"""Largest logarithm of a correction; only trees that no training made go beyond it."""


@dataclass(frozen=True)
class Timed:
    """S stacks for N problems of one data type and layout that a set covers, on one card; power is lazy."""

    chosen: SetModel
    stacks: Sequence[str]
    gpu: GPU
    alike: float
    """Logarithmic width that the interval has more, since another data type or layout was recorded."""
    bound: Bound
    names: tuple[str, ...]
    """Of the features."""
    features: Array
    """(F, N)."""
    distances: Array
    """From what was recorded, (N,)."""
    on_grid: Array
    """Whether the sizes of each problem were recorded, bool (N,)."""

    @classmethod
    def of(cls, chosen: SetModel, stacks: Sequence[str], problems: Sequence[Problem], gpu: GPU) -> "Timed":
        """The features of problems."""
        recorded, first = chosen.recorded, problems[0]
        every = [problem.sizes for problem in problems]
        dims = {name: np.array([sizes[name] for sizes in every], dtype=float) for name in features_of(recorded.op).DIMS}
        kind = gpu, first.dtype, first.layout
        bound, names, table, log_sizes = feature_table(recorded.op, *kind, dims, recorded.timing)
        on_grid = np.array([all(s[name] in sizes for name, sizes in chosen.sizes.items()) for s in every], dtype=bool)
        alike = 0.0 if recorded.exactly(first) else recorded.alike_width
        return cls(chosen, stacks, gpu, alike, bound, names, table, chosen.outside(log_sizes, bound), on_grid)

    @cached_property
    def latency(self) -> list[list[Predicted]]:
        """Seconds: for each problem a list of stacks."""
        return self._quantity("latency", self.bound.total_s, np.inf, {})

    @cached_property
    def power(self) -> list[list[Predicted]] | None:
        """Watts, as `latency`; None where nobody recorded power."""
        if ("power", OTHER) not in self.chosen.heads:
            return None
        seconds = np.array([[predicted.value for predicted in part] for part in self.latency]).T
        base = np.full(seconds.shape, self.gpu.tdp_w)
        if (bases := self.chosen.power_bases) is not None:
            base = (bases.get(self.gpu.name) or power_base(self.gpu)).watts(self.bound, seconds, self.gpu.tdp_w)
        return self._quantity("power", base, self.gpu.tdp_w, used(self.bound, seconds))

    def seconds(self, number: int) -> Iterator[tuple[str, float]]:
        """Each stack with its latency for one of the problems."""
        for stack, latency in zip(self.stacks, self.latency[number], strict=True):
            yield stack, self.chosen.streamed(latency, self.gpu, self.bound, number).value

    def predictions(self, number: int, with_power: bool) -> Iterator[StackPrediction]:
        """Those of one of the problems."""
        recorded = self.chosen.recorded
        recorded_as = f"{recorded.dtypes[0]}, {recorded.layouts[0]}" if self.alike else None
        busy = {name: seconds.item(number) for name, seconds in self.bound.parts.items()}
        if self.chosen.floors:
            busy["launch"] = NORMAL_S
        latency, power, gpus = self.latency[number], self.power if with_power else None, recorded.gpus
        for place, stack in enumerate(self.stacks):
            version, watts = recorded.stacks[stack].get(self.gpu.name), None if power is None else power[number][place]
            latency_s = self.chosen.streamed(latency[place], self.gpu, self.bound, number)
            yield StackPrediction(stack, version, latency_s, watts, gpus, recorded_as, busy)

    def _quantity(self, name: str, base: Array, most: float, more: Mapping[str, Array]) -> list[list[Predicted]]:
        """A quantity: for each problem a list of stacks.

        Args:
            name: `latency` or `power`.
            base: the trees correct it, (N,) or (S, N).
            most: no value is larger.
            more: features that differ between stacks, (S, N) each.
        """
        transferred = (name, self.gpu.name) not in self.chosen.heads
        head = self.chosen.heads[name, OTHER if transferred else self.gpu.name]
        rows = np.zeros((len(self.stacks), len(self.on_grid), len(head.columns)), dtype=np.float32)
        columns, places = head.places(self.names)
        rows[:, :, columns] = self.features.take(places, axis=0).T
        for number, stack in enumerate(self.stacks):
            if (column := head.column.get(STACK + stack)) is not None:
                rows[number, :, column] = 1.0
        for feature, values in more.items():
            if (column := head.column.get(feature)) is not None:
                rows[:, :, column] = values
        ratios = head.trees.predict(rows.reshape(-1, len(head.columns))).reshape(rows.shape[:2])
        # Trees that learned other cards could pass the roof of this one.
        least = self.bound.parts["math"] if transferred and name == "latency" else 0.0
        ratios = np.minimum(np.maximum(ratios, -_MOST_RATIO), _MOST_RATIO)
        values = np.minimum(np.maximum(base * np.exp(ratios), least), most)
        recorded, between = head.recorded, head.between
        if self.alike:
            recorded, between = (replace(each, width=hypot(each.width, self.alike)) for each in (recorded, between))
        low, high = recorded.around(values, self.distances)
        if not transferred and not self.on_grid.all():
            off_grid = ~self.on_grid
            low[:, off_grid], high[:, off_grid] = between.around(values[:, off_grid], self.distances[off_grid])
        ends = zip(values.T.tolist(), low.T.tolist(), np.minimum(high, most).T.tolist(), strict=True)
        return [[Predicted(*each, transferred) for each in zip(*of_problem, strict=True)] for of_problem in ends]
