"""Plans: a table of ranges of shapes and the variant that runs each, made before anything runs.

The engine of `recommend` gives the costs of all kernels of the op on a grid of shapes. A range is split until a config
is close to the best at all of its grid points. Alignment is a second division: where configs need rows that are
multiples of 16 bytes, say, shapes whose dimensions are multiples of 16, of 8 and so on have ranges of their own. A
config that does not fit a shape in its range is not used for it; the engine then answers for that shape.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import isfinite, log
from typing import Any

import numpy as np

from kernrec.compile.triton_version import has_triton
from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.op import Problem
from kernrec.recommender import Query, Recommender
from kernrec.recommender.candidate_set import CandidateSet
from kernrec.run.shapes import Shapes, close_value, power_of_two
from kernrec.util.config_short import short_config
from kernrec.util.light_dataclass import dataclass

TOLERANCE = 0.05
"""How far above the best cost a config may be at the grid points of its range, as a fraction: predictions of configs
are less sure than that."""
_POINTS = 384
"""Problems that are asked about, at most."""
_LONGEST = 24
"""Grid points of a dimension, at most."""
_MULTIPLES = (1, 2, 4, 8, 16)

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Variant:
    """A config of a kernel."""

    kernel: Kernel
    config: Mapping[str, int]

    def __repr__(self) -> str:
        return f"<{self.kernel.name} {short_config(self.config)}>"

    def fits(self, problem: Problem, gpu: GPU) -> bool:
        """Whether it can run a problem."""
        return self.kernel.fits(self.config, problem, gpu.limits)


@dataclass(frozen=True, eq=False)
class PlanRow:
    """A range of shapes, and the variant that runs it."""

    low: Mapping[str, int]
    """The least value of each ranged dimension."""
    high: Mapping[str, int]
    multiple: int
    """Dimensions in `Plan.aligned` are multiples of it."""
    variant: Variant
    latency_s: tuple[float, float]
    """Expected at the least and at the largest grid point of the range; infinite where the variant does not fit."""
    excess: float
    """How far the objective is above that of the best config, at the grid point where it is most; a fraction."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return {
            "low": dict(self.low),
            "high": dict(self.high),
            "multiple_of": self.multiple,
            "kernel": self.variant.kernel.name,
            "config": dict(self.variant.config),
            "latency_s": list(self.latency_s),
            "excess": self.excess,
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """The ranges of shapes of a built kernel; `print(plan)` shows them."""

    shapes: Shapes
    gpu: GPU
    query: Query
    aligned: tuple[str, ...]
    """Dimensions whose largest power of two decides, beside the range, which configs can run."""
    rows: tuple[PlanRow, ...]
    """Of several rows that hold a shape, the one with the largest `multiple` counts, and the first of those."""

    def row(self, values: Mapping[str, int]) -> PlanRow | None:
        """The row for these values of the ranged dimensions; None where no row holds them."""
        multiple = min((power_of_two(values[name]) for name in self.aligned), default=1)
        fitting = (
            row
            for row in self.rows
            if row.multiple <= multiple and all(row.low[n] <= v <= row.high[n] for n, v in values.items())
        )
        return max(fitting, key=lambda row: row.multiple, default=None)

    def as_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain values for JSON."""
        return [row.as_dict() for row in self.rows]

    def __str__(self) -> str:
        shapes = self.shapes
        fixed = "".join(f" {name}={value}" for name, value in shapes.fixed.items())
        title = f"{shapes.op.name} {shapes.dtype},{shapes.layout}{fixed} on {self.gpu.title}"
        heads = [*shapes.ranged, *(["multiple of"] if self.aligned else []), "kernel", "config", "latency [us]"]
        lines = [heads]
        for row in self.rows:
            cells = [_span(row.low[name], row.high[name]) for name in shapes.ranged]
            cells += [str(row.multiple)] if self.aligned else []
            ends = dict.fromkeys(f"{latency * 1e6:.3g}" for latency in row.latency_s if isfinite(latency))
            lines.append([*cells, row.variant.kernel.name, short_config(row.variant.config), " to ".join(ends)])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        table.insert(1, "─" * max(map(len, table)))
        if self.aligned:
            table.append(f"multiple of: of {', '.join(self.aligned)}; the largest that a shape is counts")
        return "\n".join([title, *table])


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def make_plan(recommender: Recommender, shapes: Shapes, gpu: GPU, query: Query) -> Plan:
    """The plan for all problems of `shapes` on a GPU.

    Args:
        recommender: the engine.
        shapes: the problems.
        gpu: the GPU.
        query: objective (`latency`, `energy` or `edp`), power limit and clock.

    Raises:
        KernrecError: a shape among the grid points can be run by no kernel, or there are no profiles.
    """
    costs = _Costs(recommender, gpu, query)
    aligned, multiples = _alignment(costs, shapes)
    count = max(2, min(_LONGEST, int((_POINTS / len(multiples)) ** (1 / max(len(shapes.ranged), 1)))))
    grid = [_samples(values, count) for values in shapes.ranged.values()]
    rows: list[PlanRow] = []
    for multiple in multiples:
        rows += _Division(costs, shapes, grid, aligned, multiple).rows()
    return Plan(shapes, gpu, query, aligned, tuple(rows))


def best_variant(recommender: Recommender, problem: Problem, gpu: GPU, query: Query) -> Variant:
    """The best config for one problem; raises as `make_plan` does."""
    costs = _Costs(recommender, gpu, query)
    (values,) = costs.of([problem])
    return costs.variant(int(values.argmin()))


class _Costs:
    """The objective of all configs, side by side, on problems of one dtype and layout.

    Kernels in Triton are among them where Triton is installed, which compiles them.
    """

    def __init__(self, recommender: Recommender, gpu: GPU, query: Query) -> None:
        self._recommender, self.gpu, self._query = recommender, gpu, query
        self._triton = has_triton()
        self._starts: dict[str, int] = {}
        self._tables: list[Any] = []
        self._length = 0
        self._latency: dict[Problem, Array] = {}

    def of(self, problems: Sequence[Problem]) -> Iterator[Array]:
        """Of each problem the objective of each config; infinite for those that cannot run it or are not worth a
        look."""
        return map(self._of, self._recommender.candidates_of_each(problems, self.gpu, (self._query.point,)))

    def _of(self, candidates: CandidateSet) -> Array:
        problem = candidates.problem
        latency, energy = candidates.latency_s[0], candidates.energy_j[0]
        objective = self._query.objective.value_of(latency, energy)
        parts = []
        for number, kernel in enumerate(candidates.kernels):
            table = kernel.table
            if table.kernel.triton is not None and not self._triton:
                continue
            if table.kernel.name not in self._starts:
                self._starts[table.kernel.name] = self._length
                self._tables.append(table)
                self._length += len(table.space)
            here = slice(candidates.starts[number], candidates.starts[number + 1])
            parts.append((self._starts[table.kernel.name] + kernel.rows, objective[here], latency[here]))
        if not parts:
            raise KernrecError(f"no kernel that compiles here can run {problem.key} on {self.gpu.name}")
        values, times = np.full((2, self._length), np.inf, np.float32)
        for rows, some, some_times in parts:
            values[rows], times[rows] = some, some_times
        self._latency[problem] = times
        return values

    def latency_s(self, problem: Problem, number: int) -> float:
        """Of a config on a problem that was asked about."""
        return float(self._latency[problem][number])

    def variant(self, number: int) -> Variant:
        """The config of this number."""
        table = next(t for t in reversed(self._tables) if self._starts[t.kernel.name] <= number)
        return Variant(table.kernel, table.space.config(number - self._starts[table.kernel.name]))

    def runnable(self, problem: Problem) -> set[tuple[str, int]]:
        """The configs that keep all constraints on a problem."""
        tables = self._recommender.context.tables(problem, self.gpu)
        return {(table.kernel.name, int(row)) for table in tables for row in table.space.at(problem).rows}


def _alignment(costs: _Costs, shapes: Shapes) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The ranged dimensions whose largest power of two matters, and the powers that do, largest first."""
    middle = {name: values[len(values) // 2] for name, values in shapes.ranged.items()}
    even = {n: close_value(v, middle[n], 16) or middle[n] for n, v in shapes.ranged.items()}
    reference = costs.runnable(shapes.problem(even))
    aligned = []
    for name, values in shapes.ranged.items():
        odd = next((v for m in _MULTIPLES if (v := close_value(values, even[name], m)) is not None), even[name])
        if power_of_two(odd) < power_of_two(even[name]) and reference - costs.runnable(
            shapes.problem(even | {name: odd})
        ):
            aligned.append(name)
    if not aligned:
        return (), (1,)
    multiples: list[int] = []
    last: set[tuple[str, int]] = set()
    for multiple in _MULTIPLES:
        close = {n: close_value(shapes.ranged[n], even[n], multiple) for n in aligned}
        if None in close.values():
            continue
        runnable = costs.runnable(shapes.problem(even | {n: value for n, value in close.items() if value is not None}))
        if not multiples or runnable != last:
            multiples.append(multiple)
        last = runnable
    return tuple(aligned), tuple(reversed(multiples)) or (1,)


def _samples(values: Sequence[int], count: int) -> list[int]:
    """Values of a dimension that are asked about: both ends, and as evenly as can be by ratio between them."""
    if len(values) <= count:
        return list(values)
    chosen = {values[0], values[-1]}
    for wanted in np.geomspace(values[0], values[-1], count):
        chosen.add(values[min(bisect_left(values, float(wanted)), len(values) - 1)])
    return sorted(chosen)


Box = tuple[tuple[int, int], ...]
"""Of each ranged dimension, the first and the last grid point."""


class _Division:
    """The ranges of the shapes whose aligned dimensions are multiples of one power of two."""

    def __init__(
        self, costs: _Costs, shapes: Shapes, grid: list[list[int]], aligned: tuple[str, ...], multiple: int
    ) -> None:
        self._costs, self._shapes, self._grid, self._multiple = costs, shapes, grid, multiple
        self._problems: dict[tuple[int, ...], Problem] = {}
        # Where every value is a grid point, ranges need not share their ends.
        self._whole = [len(g) == len(values) for g, values in zip(grid, shapes.ranged.values(), strict=True)]
        excess: dict[tuple[int, ...], Array] = {}
        for point in product(*(range(len(values)) for values in grid)):
            named = dict(zip(shapes.ranged, (g[i] for g, i in zip(grid, point, strict=True)), strict=True))
            for name in aligned:
                close = close_value(shapes.ranged[name], named[name], multiple)
                named[name] = named[name] if close is None else close
            self._problems[point] = shapes.problem(named)
        for point, values in zip(self._problems, costs.of(list(self._problems.values())), strict=True):
            excess[point] = values / values.min() - 1
        longest = max(map(len, excess.values()))
        self._points = {point: place for place, point in enumerate(excess)}
        self._excess = np.full((len(excess), longest), np.inf, np.float32)
        for point, values in excess.items():
            self._excess[self._points[point], : len(values)] = values

    def rows(self) -> list[PlanRow]:
        """The ranges, smaller shapes first."""
        boxes = self._split(tuple((0, len(values) - 1) for values in self._grid))
        return [self._row(box, best, worst) for box, best, worst in boxes]

    def _best(self, box: Box) -> tuple[int, float]:
        """The config whose excess over the best is least where it is most, and that excess."""
        worst = self._excess[[self._points[point] for point in _points_of(box)]].max(axis=0)
        best = int(worst.argmin())
        return best, float(worst[best])

    def _split(self, box: Box) -> list[tuple[Box, int, float]]:
        best, worst = self._best(box)
        halves = [
            (axis, part)
            for axis, (first, last) in enumerate(box)
            if last - first >= (1 if self._whole[axis] else 2)
            for middle in [(first + last) // 2]
            for part in [((first, middle), (middle + self._whole[axis], last))]
        ]
        if worst <= TOLERANCE or not halves:
            return [(box, best, worst)]

        def parts(half: tuple[int, tuple[tuple[int, int], tuple[int, int]]]) -> list[Box]:
            axis, ends = half
            return [(*box[:axis], part, *box[axis + 1 :]) for part in ends]

        # Along the axis whose halves are least wrong; of equals the one with the largest ratio of its ends.
        def order(half: tuple[int, tuple[tuple[int, int], tuple[int, int]]]) -> tuple[float, float]:
            values, (first, last) = self._grid[half[0]], box[half[0]]
            return sum(min(self._best(part)[1], 10.0) for part in parts(half)), -log(values[last] / values[first])

        lower, upper = (self._split(part) for part in parts(min(halves, key=order)))
        if len(lower) == len(upper) == 1 and lower[0][1] == upper[0][1]:
            return [(box, lower[0][1], max(lower[0][2], upper[0][2]))]
        return [*lower, *upper]

    def _row(self, box: Box, best: int, excess: float) -> PlanRow:
        points = _points_of(box)
        if not np.isfinite(excess):  # no config runs at both ends: the one that is best at the larger shape
            best = int(self._excess[self._points[points[-1]]].argmin())
        low, high = {}, {}
        ranged = zip(self._shapes.ranged.items(), self._grid, self._whole, box, strict=True)
        for (name, values), grid, whole, (first, last) in ranged:
            low[name] = grid[first] if whole or first == 0 else values[bisect_right(values, grid[first])]
            high[name] = grid[last]
        ends = (self._costs.latency_s(self._problems[points[place]], best) for place in (0, -1))
        variant = self._costs.variant(best)
        return PlanRow(low, high, self._multiple, variant, (next(ends), next(ends)), excess)


def _points_of(box: Box) -> list[tuple[int, ...]]:
    return list(product(*(range(first, last + 1) for first, last in box)))
