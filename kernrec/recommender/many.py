"""One choice for each of many shapes: the same answers as one by one, many times quicker where nothing is trained.

Predictions of all shapes are computed side by side. Databases and trained models are asked shape by shape, as always.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from kernrec.errors import KernrecError, NoKernelError, UsageError
from kernrec.gpu import find_gpu
from kernrec.kernel.many_problems import ManyProblems
from kernrec.model.prior.launch_costs import NominalCosts
from kernrec.model.prior.launch_time import INTERVAL
from kernrec.model.prior.power import RANDOM
from kernrec.model.prior.spread import half_widths, regime
from kernrec.op import Op, Problem, find_op
from kernrec.recommender.estimate.costs import Source
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.prediction import nominal_costs
from kernrec.recommender.estimate.shortlist import SHORTLIST, quick_costs
from kernrec.recommender.estimate.static_table import Array, StaticTable, Tables
from kernrec.recommender.estimate.yardstick import UNCHECKED, Belief, predict_yardsticks, yardstick_of
from kernrec.recommender.kernel_candidates import SWEPT
from kernrec.recommender.layouts import layouts_that_matter
from kernrec.recommender.lines import Line, predict_lines
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.sweep import op_points
from kernrec.recommender.tabular import arrow_table
from kernrec.store import Evidence
from kernrec.util.light_dataclass import dataclass

ROWS = 1 << 15
"""Configs times problems that are laid side by side: more take longer, because columns leave the processor's cache."""

_TOGETHER = 64
"""Problems whose lines of stacks are predicted together."""

_Row = tuple[str, Mapping[str, int], tuple[float, float, float], tuple[float, float, float], float, str, str]
"""Kernel, config, latency and energy with their intervals, power limit, source, and the stack in the kernel's place."""
_NOTHING = (float("nan"), float("nan"), float("nan"))
_NO_ROW: _Row = ("", {}, _NOTHING, _NOTHING, float("nan"), "", "")


@dataclass(frozen=True, eq=False)
class ManyAnswers:
    """The best choice for each shape, or the fastest stack where no kernel runs it.

    Arrays (N,) in SI units, NaN where nothing can run a shape, or nobody recorded what a stack draws.
    """

    problems: tuple[Problem, ...]
    kernels: tuple[str, ...]
    """Name of the kernel; empty where none can run the shape."""
    configs: tuple[Mapping[str, int], ...]
    latency_s: np.ndarray
    """(N, 3): expected value, lower and upper end of the 90 % interval."""
    energy_j: np.ndarray
    """(N, 3), as `latency_s`."""
    power_limit_w: np.ndarray
    sources: tuple[str, ...]
    """Where the latency comes from."""
    stacks: tuple[str, ...]
    """The stack whose line is the answer; empty where a kernel is, or nothing can run the shape."""
    failures: Mapping[int, str]
    """Why nothing can run a shape, by its number."""

    def __len__(self) -> int:
        return len(self.problems)

    def __repr__(self) -> str:
        of_op = self.problems[0].op if self.problems else "nothing"
        return f"<ManyAnswers: {len(self)} shapes of {of_op}, {len(self.failures)} that nothing can run>"

    def to_arrow(self) -> Any:
        """A row for each shape as a `pyarrow.Table`, under the names of `Recommendation.to_arrow`.

        Raises:
            KernrecError: PyArrow is not installed.
        """
        return arrow_table(
            [
                {
                    "problem": problem.key,
                    "kernel": self.kernels[number],
                    "config": self.configs[number],
                    "power_limit_w": float(self.power_limit_w[number]),
                    "latency_s": float(self.latency_s[number, 0]),
                    "latency_interval_s": self.latency_s[number, 1:].tolist(),
                    "energy_j": float(self.energy_j[number, 0]),
                    "energy_interval_j": self.energy_j[number, 1:].tolist(),
                    "source": self.sources[number],
                }
                for number, problem in enumerate(self.problems)
            ]
        )


def answer_many(
    recommender: Recommender, op: str, gpu: str, dims: Mapping[str, Any], query: Query, **kind: str | None
) -> ManyAnswers:
    """The best choice for each of many shapes of an op.

    Args:
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
    recommender = recommender.for_inputs(query.inputs)
    models = recommender.context.models
    tables: Sequence[StaticTable] = ()
    with suppress(NoKernelError):
        tables = recommender.context.tables(problems[0], card) if problems else ()
    kernels = [table.kernel for table in tables]
    rows: dict[Problem, _Row] = {}
    failures: dict[Problem, str] = {}
    chosen: dict[Problem, Problem] = {}  # the problem in a better layout
    if kernels and not query.source and not any(models.scope(definition.name, kernel, card) for kernel in kernels):
        nothing = Evidence()
        distinct = dict.fromkeys(problems)
        fixed = kind.get("layout") is not None
        together = [
            problem
            for problem in distinct
            if (fixed or not layouts_that_matter(problem, card))
            and recommender.context.evidence(problem, card, kernels) == nothing
        ]
        rows = dict(_predicted(tables, together, query, models))
    alone = [problem for problem in dict.fromkeys(problems) if problem not in rows]
    if not kernels:
        predict_lines(recommender.context, alone, card)
    first_choice, fixed = replace(query, top=1), kind.get("layout") is not None
    for number, problem in enumerate(alone):
        if kernels and number % _TOGETHER == 0:
            predict_yardsticks(alone[number : number + _TOGETHER], card, models, query.inputs)
        try:
            try:
                answer = recommender.choose(problem, card, first_choice, fixed)
            except KernrecError:
                answer = recommender.answer_op(problem, card, query, fixed)
        except KernrecError as error:
            failures[problem] = str(error)
            continue
        chosen[problem] = answer.problem
        if not answer.choices:
            rows[problem] = _of_line(answer.lines[0])
            continue
        best = answer.best
        latency, energy = ((e.value, e.low, e.high) for e in (best.latency_s, best.energy_j))
        rows[problem] = best.kernel.name, best.config, latency, energy, best.power_limit_w, str(best.source), ""
    columns = zip(*(rows.get(problem, _NO_ROW) for problem in problems), strict=True) if problems else ((),) * 7
    names, configs, latencies, energies, limits, sources, stacks = columns
    return ManyAnswers(
        problems=tuple(chosen.get(problem, problem) for problem in problems),
        kernels=names,
        configs=configs,
        latency_s=np.array(latencies, dtype=np.float64).reshape(-1, 3),
        energy_j=np.array(energies, dtype=np.float64).reshape(-1, 3),
        power_limit_w=np.array(limits, dtype=np.float64),
        sources=sources,
        stacks=stacks,
        failures={number: failures[problem] for number, problem in enumerate(problems) if problem in failures},
    )


def _of_line(line: Line) -> _Row:
    latency = (line.latency_s, *line.latency_interval_s)
    energy = _NOTHING
    if line.energy_j is not None and line.energy_interval_j is not None:
        energy = (line.energy_j, *line.energy_interval_j)
    return "", {}, latency, energy, line.power_limit_w, line.source, line.stack


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
    tables: Sequence[StaticTable], problems: Sequence[Problem], query: Query, models: ModelStore
) -> Iterator[tuple[Problem, _Row]]:
    """The predicted choices of problems side by side; nothing of a problem that has to be asked by itself."""
    gpu = tables[0].gpu
    points = op_points(gpu, query)
    if (stacks := models.vendor_model(problems[0].op) if problems and query.inputs == RANDOM else None) is not None:
        stacks.predict_many(problems, gpu)
    size = max(1, ROWS // max(len(table.space) for table in tables))
    for first in range(0, len(problems), size):
        some = problems[first : first + size]
        best = np.full(len(some), np.inf)
        chosen: dict[int, _Row] = {}
        yardsticks = [yardstick_of(problem, gpu, models, query.inputs) for problem in some]
        for table in tables:
            if (estimates := _estimate_many(table, some, points)) is None:
                return
            starts, rows, latency_s, energy_j, factor, default_s = estimates
            beliefs = [
                Belief.of(problem, float(default_s[start:end].min()), yardstick) if start < end else UNCHECKED
                for problem, yardstick, (start, end) in zip(some, yardsticks, pairwise(starts), strict=True)
            ]
            slower = np.repeat([belief.slower for belief in beliefs], np.diff(starts))
            values = query.objective.value_of(latency_s * slower, energy_j * slower)
            least = values.min(axis=0)
            for number, (start, end) in enumerate(pairwise(starts)):
                if start == end:
                    continue
                place = int(start + least[start:end].argmin())
                if least[place] < best[number]:
                    best[number] = least[place]
                    point = int(values[:, place].argmin())
                    latency = beliefs[number].interval(float(latency_s[point, place]), float(factor[point, place]))
                    energy = beliefs[number].interval(float(energy_j[point, place]), INTERVAL)
                    config, limit_w = table.space.config(int(rows[place])), points[point].limit_w(gpu)
                    chosen[number] = table.kernel.name, config, latency, energy, limit_w, str(Source.PRIOR), ""
        for number, row in chosen.items():
            yield some[number], row


def _estimate_many(
    table: StaticTable, problems: Sequence[Problem], points: Sequence[OperatingPoint]
) -> tuple[Array, Array, Array, Array, Array, Array] | None:
    """The prior's estimates of a kernel's configs on problems of one op, in the dtype and layout of the table.

    Returns:
        Where the N candidates of each problem begin, and where those of the last one end, (problems + 1,); their rows
        of the space, (N,); latency (s), energy (J) and the factor of the latency's 90 % interval at each operating
        point, (points, N), infinite where they are not estimated; latency at the default one, (N,). None where the
        kernel has to be asked problem by problem.
    """
    if (repeated := table.repeated(len(problems), problems[0])) is None:
        return None
    on_problems, width = ManyProblems(table.space, problems), len(table.space)
    rows = (on_problems.valid & table.profiled_and_fitting(problems[0])).ravel().nonzero()[0]
    begins = np.arange(len(problems) + 1) * width
    starts = rows.searchsorted(begins)
    if (np.diff(starts) > SHORTLIST).any():
        picks = [
            rows.searchsorted(repeated.occupancy_choice(on_problems, rows[first:last]))
            for first, last in pairwise(starts)
            if last - first > SHORTLIST
        ]
        listed = _promising(quick_costs(repeated, on_problems, rows), starts, SHORTLIST)
        listed[picks] = True
        rows = rows[listed]
        starts = rows.searchsorted(begins)
    nominal, *_ = nominal_costs(Tables((repeated,)), [(0, on_problems, rows)])
    columns = np.full((3, len(points), len(rows)), np.inf)
    estimated: Array | slice = slice(None)
    for number, point in enumerate(points):
        costs = NominalCosts(*nominal[:, estimated])
        limited = table.power.apply_power_limit(costs, point.power_limit_w, point.clock_hz)
        factor = np.exp(half_widths(regime(costs, limited.capped))[0])
        columns[:, number, estimated] = limited.latency_s, limited.energy_j, factor
        if number == 0 and len(points) > 1:
            estimated = _promising(columns[:2, 0], starts, SWEPT).nonzero()[0]
    latency_s, energy_j, factor = columns
    default = points[0].is_default(table.gpu)
    default_s = latency_s[0] if default else table.power.apply_power_limit(NominalCosts(*nominal)).latency_s
    return starts, rows % width, latency_s, energy_j, factor, default_s


def _promising(costs: Sequence[Array] | Array, starts: Array, count: int) -> Array:
    """Which candidates of each problem have the least of each cost, half of `count` for each; bool (N,)."""
    chosen = np.zeros(len(costs[0]), dtype=bool)
    for first, last in pairwise(starts.tolist()):
        if last - first <= count:
            chosen[first:last] = True
            continue
        for cost in costs:
            chosen[first + cost[first:last].argpartition(count // 2)[: count // 2]] = True
    return chosen
