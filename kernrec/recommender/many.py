"""One choice for each of many shapes: the same answers as one by one, several times quicker.

Predictions of all shapes are computed side by side. What a database or a trained model knows of a shape is asked for
shape by shape, as always.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.model.prior.launch_time import INTERVAL
from kernrec.op import Op, Problem, find_op
from kernrec.recommender.estimate.costs import Source
from kernrec.recommender.estimate.many_estimates import ROWS, estimate_many
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.kernel_candidates import SWEPT
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.result import Choice
from kernrec.recommender.sweep import op_points
from kernrec.store import Evidence
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True, eq=False)
class ManyAnswers:
    """The best choice for each shape; arrays (N,) in SI units, NaN where nothing can run a shape."""

    problems: tuple[Problem, ...]
    kernels: tuple[str, ...]
    """Name of the kernel; empty where nothing can run the shape."""
    configs: tuple[Mapping[str, int], ...]
    latency_s: np.ndarray
    """(N, 3): expected value, lower and upper end of the 90 % interval."""
    energy_j: np.ndarray
    """(N, 3), as `latency_s`."""
    power_limit_w: np.ndarray
    """The power limit that the costs hold under."""
    sources: tuple[str, ...]
    """Where the latency comes from."""
    failures: Mapping[int, str]
    """Why nothing can run a shape, by its number."""

    def __len__(self) -> int:
        return len(self.problems)


def answer_many(
    recommender: Recommender, op: str, gpu: str, dims: Mapping[str, Any], query: Query, **kind: str | None
) -> ManyAnswers:
    """The best choice for each of many shapes of an op.

    Args:
        recommender: who is asked.
        op: the operator.
        gpu: the GPU.
        dims: dimensions by name: numbers, or sequences of N numbers.
        query: objective (`latency`, `energy` or `edp`), power limit and clock; no bounds.
        kind: `dtype` and `layout`; the op's first ones by default.

    Raises:
        UsageError: a name is unknown, a value impossible, or arrays have different lengths.
        KernrecError: there are no profiles to predict from.
    """
    if query.objective is Objective.PARETO:
        raise UsageError("many shapes are answered with one choice each: give the objective latency, energy or edp")
    if query.max_slowdown is not None or query.max_power_w is not None or query.clocks:
        raise UsageError("bounds and sweeps over clocks are for one shape; many shapes take a power limit and a clock")
    definition, card = find_op(op), find_gpu(gpu)
    problems = tuple(_problems(definition, dims, kind))
    results = _Results(problems)
    alone = dict.fromkeys(problems)
    recommender = recommender.for_inputs(query.inputs)
    models = recommender.context.models
    tables = recommender.context.tables(problems[0], card) if problems else ()
    kernels = [table.kernel for table in tables]
    if kernels and not any(models.scope(definition.name, kernel, card) for kernel in kernels):
        nothing = Evidence()
        together = [p for p in alone if recommender.context.evidence(p, card, kernels) == nothing]
        for problem in _predicted(tables, together, query, results):
            del alone[problem]
    for problem in alone:
        try:
            results.take(problem, recommender.answer_problem(problem, card, query).best)
        except KernrecError as error:
            results.failures[problem] = str(error)
    return results.answers()


def _problems(op: Op, dims: Mapping[str, Any], kind: Mapping[str, str | None]) -> Iterator[Problem]:
    arrays = {name: np.asarray(values) for name, values in dims.items()}
    for name, values in arrays.items():
        if values.ndim > 1 or (values.dtype.kind not in "iu" and values.size):
            raise UsageError(f"dimension {name!r:.40}: expected whole numbers, one or a sequence of them")
    lengths = {name: len(values) for name, values in arrays.items() if values.ndim}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise UsageError(f"sequences of dimensions need one length, but {shown}")
    count = next(iter(lengths.values()), 1)
    columns = {name: np.broadcast_to(values, count).tolist() for name, values in arrays.items()}
    for number in range(count):
        yield op.problem(kind.get("dtype"), kind.get("layout"), **{name: c[number] for name, c in columns.items()})


def _predicted(
    tables: Sequence[StaticTable], problems: Sequence[Problem], query: Query, results: "_Results"
) -> Iterator[Problem]:
    """Answers problems side by side; yields those that are answered."""
    points = op_points(tables[0].gpu, query)
    size = max(1, ROWS // max(len(table.space) for table in tables))
    for first in range(0, len(problems), size):
        some = problems[first : first + size]
        best = np.full(len(some), np.inf)
        chosen: list[tuple[StaticTable, int, tuple[float, float, float]] | None] = [None] * len(some)
        for table in tables:
            estimates = estimate_many(table, some, points, SWEPT)
            if estimates is None:
                return
            values = query.objective.value_of(estimates.latency_s, estimates.energy_j)
            least = values.min(axis=0)
            for number, (start, end) in enumerate(zip(estimates.starts[:-1], estimates.starts[1:], strict=True)):
                if start == end:
                    continue
                place = int(start + least[start:end].argmin())
                if least[place] < best[number]:
                    best[number] = least[place]
                    point = int(values[:, place].argmin())
                    costs = float(estimates.latency_s[point, place]), float(estimates.energy_j[point, place])
                    chosen[number] = table, int(estimates.rows[place]), (*costs, points[point].limit_w(table.gpu))
        for problem, choice in zip(some, chosen, strict=True):
            if choice is not None:
                results.predicted(problem, *choice)
                yield problem


class _Results:
    """Collects answers by problem."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self._problems = problems
        self._rows: dict[Problem, tuple[Any, ...]] = {}
        self.failures: dict[Problem, str] = {}

    def take(self, problem: Problem, best: Choice) -> None:
        """A single answer."""
        bounds = [(e.value, e.low, e.high) for e in (best.latency_s, best.energy_j)]
        self._rows[problem] = best.kernel.name, best.config, *bounds, best.power_limit_w, str(best.source)

    def predicted(self, problem: Problem, table: StaticTable, row: int, costs: tuple[float, float, float]) -> None:
        """A prediction: costs are latency, energy and the power limit."""
        bounds = [(value, value / INTERVAL, value * INTERVAL) for value in costs[:2]]
        self._rows[problem] = table.kernel.name, table.space.config(row), *bounds, costs[2], str(Source.PRIOR)

    def answers(self) -> ManyAnswers:
        """All of them, in the order of the problems."""
        nothing = (float("nan"),) * 3
        missing: tuple[Any, ...] = "", {}, nothing, nothing, float("nan"), ""
        rows = [self._rows.get(problem, missing) for problem in self._problems]
        kernels, configs, latency, energy, limits, sources = zip(*rows, strict=True) if rows else ((),) * 6
        return ManyAnswers(
            problems=self._problems,
            kernels=kernels,
            configs=configs,
            latency_s=np.array(latency, dtype=np.float64).reshape(-1, 3),
            energy_j=np.array(energy, dtype=np.float64).reshape(-1, 3),
            power_limit_w=np.array(limits, dtype=np.float64),
            sources=sources,
            failures={number: self.failures[p] for number, p in enumerate(self._problems) if p in self.failures},
        )
