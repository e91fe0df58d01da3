"""The prior's prediction: time and energy of configs on one problem, before any power limit."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from kernrec.kernel import ProblemSpace
from kernrec.kernel.many_problems import ManyProblems, OnProblems
from kernrec.model.prior.core import (
    BLOCKS,
    CONCURRENT,
    DRAM_BYTES,
    DRAM_SLOWDOWN,
    LONE_WAITS,
    LOOPS,
    OVERLAPPED,
    PREFETCH,
    SERIAL_CLK,
    WAIT_ROUNDS,
)
from kernrec.model.prior.dram_traffic import dram_bytes, sampled_dram_bytes
from kernrec.model.prior.epilogue import epilogue
from kernrec.model.prior.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.prior.launch_time import LAUNCH_S, START_S, LaunchTime, LaunchWork, launch_time
from kernrec.op import Problem
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.sampled_launch import busy_grid, footprints
from kernrec.recommender.estimate.static_table import Array, StaticTable, Tables
from kernrec.util.compiled import core
from kernrec.util.light_dataclass import dataclass

_Columns = Mapping[str, Array | float]


@dataclass(frozen=True)
class Prediction:
    """Time and energy of C configs of a kernel on one problem; arrays (C,) unless said otherwise."""

    table: StaticTable
    on_problem: OnProblems
    """The space of the table on the problem, or on several: then all is of the configs on all of them."""
    rows: Array
    """Rows of `on_problem`, ascending."""
    nominal: NominalCosts
    """Seconds at the boost clock by what bounds them, joules at nominal voltage."""
    times: LaunchTime
    """Of all launches, one launch after the other; those of other kernels may be among them."""
    launches: tuple[tuple[int, Array], ...]
    """For each launch where it begins in `times`, and the positions in `rows` that perform it."""

    def by_problem(self, starts: Sequence[int], on_problems: Sequence[ProblemSpace]) -> "Iterator[Prediction]":
        """The prediction for each of several problems, by where its configs begin in `rows`, and the last ones end."""
        ends = [(begin, performed, performed.searchsorted(starts).tolist()) for begin, performed in self.launches]
        configs = self.on_problem.configs(self.rows)
        nominal = [np.asarray(column) for column in vars(self.nominal).values()]
        for number, (on_problem, (start, end)) in enumerate(zip(on_problems, pairwise(starts), strict=True)):
            launches = [
                (begin + places[number], performed[places[number] : places[number + 1]] - start)
                for begin, performed, places in ends
                if places[number] < places[number + 1]
            ]
            costs = NominalCosts(*[column[start:end] for column in nominal])
            yield Prediction(self.table, on_problem, configs[start:end], costs, self.times, tuple(launches))

    def limited(self, point: OperatingPoint = DEFAULT_POINT) -> LimitedCosts:
        """Latency, power and energy at an operating point."""
        return self.table.power.apply_power_limit(self.nominal, point.power_limit_w, point.clock_hz)

    def at(self, position: int) -> NominalCosts:
        """The costs of one candidate before any power limit."""
        return NominalCosts(*(float(np.take(part, position)) for part in vars(self.nominal).values()))

    def bottleneck(self, position: int) -> str:
        """The resource that takes longest in the longest launch of the candidate at this position."""
        times = self.times
        return times.bottleneck(
            max(self.places(position), key=lambda place: max(times.core_s[place], times.dram_s[place]))
        )

    def places(self, position: int) -> list[int]:
        """Where the launches of the candidate at this position are in `times`, in order."""
        places = []
        for start, performed in self.launches:
            place = int(performed.searchsorted(position))
            if place < len(performed) and performed[place] == position:
                places.append(start + place)
        return places


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of several kernels on one problem, kernel after kernel: C configs in all."""

    kernels: tuple[Prediction, ...]
    nominal: Array
    """The fields of `NominalCosts` as rows, (5, C)."""
    starts: tuple[int, ...]
    """Where the configs of each kernel begin, and C."""

    def limited_at(self, points: Sequence[OperatingPoint], positions: Array | None = None) -> LimitedCosts:
        """Latency, power and energy of the configs at these positions (None: all), (points, positions)."""
        nominal = self.nominal if positions is None else self.nominal.take(positions, axis=1)
        power = self.kernels[0].table.power
        return power.limit_launches(nominal, [(point.power_limit_w, point.clock_hz) for point in points])

    def limited_beside(
        self, first: LimitedCosts, points: Sequence[OperatingPoint], swept: Sequence[Array | None]
    ) -> LimitedCosts:
        """Costs at the first operating point, and at others those of the candidates at these positions of each kernel.

        The costs of the remaining ones are infinite there. `swept` is None for a kernel of which all are estimated.
        """
        if all(positions is None for positions in swept):
            there = self.limited_at(points)
            return LimitedCosts(*map(np.concatenate, zip(first.columns(), there.columns(), strict=True)))
        estimated = np.concatenate(
            [
                np.arange(start, end) if positions is None else positions + start
                for positions, (start, end) in zip(swept, pairwise(self.starts), strict=True)
            ]
        )
        columns = np.full((len(first.columns()), 1 + len(points), self.starts[-1]), np.inf)
        columns[:, :1] = first.columns()
        columns[:, 1:, estimated] = self.limited_at(points, estimated).columns()
        return LimitedCosts(*columns)


def predict(table: StaticTable, on_problem: ProblemSpace, rows: Array) -> Prediction:
    """The prior's time and energy of the configs `rows` (ascending) on a problem."""
    return predict_all(Tables((table,)), [(0, on_problem, rows)]).kernels[0]


def predict_all(tables: Tables, parts: Sequence[tuple[int, OnProblems, Array]]) -> Predictions:
    """The prior's time and energy of configs of several kernels on a problem, or on several.

    A pass over arrays costs more by its calls than by their length, so the launches of all kernels are laid side by
    side.

    parts: for each kernel its number in `tables`, its space on the problem, and rows of it, ascending.
    """
    nominal, times, launches = nominal_costs(tables, parts)
    starts = list(accumulate([len(rows) for _, _, rows in parts], initial=0))
    kernels = [
        Prediction(tables[number], on_problem, rows, NominalCosts(*nominal[:, start:end]), times, performed)
        for (number, on_problem, rows), start, end, performed in zip(
            parts, starts[:-1], starts[1:], launches, strict=True
        )
    ]
    return Predictions(tuple(kernels), nominal, tuple(starts))


def nominal_costs(
    tables: Tables, parts: Sequence[tuple[int, OnProblems, Array]]
) -> tuple[Array, LaunchTime, list[tuple[tuple[int, Array], ...]]]:
    """The costs of `Predictions.nominal`, the times of all launches, and of each kernel `Prediction.launches`."""
    first = tables[0]
    demand, columns = tables.demand
    performed: list[tuple[int, int, Array]] = []
    for part, (number, on_problem, rows) in enumerate(parts):
        table, configs = tables[number], on_problem.configs(rows)
        for index in range(len(table.kernel.launches)):
            positions = table.geometry(on_problem, index).performing(configs)
            if len(positions) or not len(rows):
                performed.append((part, index, positions))
    counts = [len(rows) for _, _, rows in parts]
    starts = list(accumulate(counts, initial=0))
    ends = list(accumulate([len(positions) for _, _, positions in performed], initial=0))
    loops = max(len(tables[parts[part][0]].launches[index].loops) for part, index, _ in performed)
    work = LaunchWork.empty(ends[-1], loops)
    launches: list[list[tuple[int, Array]]] = [[] for _ in parts]
    for (part, index, positions), start, end in zip(performed, ends[:-1], ends[1:], strict=True):
        number, on_problem, rows = parts[part]
        table = tables[number]
        subset = rows if len(positions) == len(rows) else rows.take(positions)
        launches[part].append((start, positions))
        place, own = slice(start, end), columns[number][index]
        if not _fill_at_once(work, place, table, index, subset, on_problem, own):
            variants = work.variants[place]
            table.launches[index].variant.take(on_problem.configs(subset), out=variants, mode="clip")
            _fill(work.rows[:, place], table, index, subset, on_problem, variants)
            variants += own
    times = launch_time(first.gpu, demand, work)
    if first.calibration:
        times = first.calibration.apply_to_time(times)
    arithmetic, byte_j = core("kernrec.model.prior"), first.power.event_j("dram.bytes")
    nominal = np.zeros((5, starts[-1]))
    nominal[2] = START_S
    summed = np.stack([times.core_s, times.dram_s, times.core_j])
    for (part, _, positions), start, end in zip(performed, ends[:-1], ends[1:], strict=True):
        arithmetic.functions.add_launches(  # launches of a config in order
            arithmetic.rows(positions + starts[part]),
            arithmetic.rows(summed[:, start:end]),
            arithmetic.rows(work.rows[DRAM_BYTES, start:end]),
            byte_j,
            LAUNCH_S,
            nominal,
        )
    _add_finishing(tables, parts, nominal)
    return nominal, times, [tuple(each) for each in launches]


_DYNAMIC = [0, 1, 3, 4]
"""Rows of `NominalCosts` that an epilogue adds to: all but the overhead of launches."""


def _add_finishing(tables: Tables, parts: Sequence[tuple[int, OnProblems, Array]], nominal: Array) -> None:
    """Adds the epilogues of problems, which are the same for every kernel on a GPU."""
    start = 0
    of_problem: tuple[float, ...] | None = None
    for number, on_problem, rows in parts:
        end = start + len(rows)
        # A profile of sampled blocks is of this very problem, and has it all.
        if not tables[number].kernel.sampled:
            if isinstance(on_problem, ManyProblems):
                more = np.array([_finishing(tables[number], problem) for problem in on_problem.problems])
                nominal[_DYNAMIC, start:end] += more.T.take(on_problem.numbers(rows), axis=1)
            else:
                of_problem = of_problem or _finishing(tables[number], on_problem.problem)
                if any(of_problem):
                    nominal[_DYNAMIC, start:end] += np.array([of_problem]).T
        start = end


def _finishing(table: StaticTable, problem: Problem) -> tuple[float, float, float, float]:
    """(core_s, dram_s, core_j, dram_j) of a problem's epilogue."""
    more = epilogue(table.gpu, table.power, problem)
    if more is None:
        return 0.0, 0.0, 0.0, 0.0
    core_s, core_j, dram_bytes = more
    slower = table.calibration.core_time if table.calibration else 1.0
    return slower * core_s, dram_bytes / table.bandwidth, core_j, dram_bytes * table.power.event_j("dram.bytes")


def _fill_at_once(
    work: LaunchWork, place: slice, table: StaticTable, index: int, rows: Array, on_problem: OnProblems, first: int
) -> bool:
    """Writes one launch of these rows into a place of the work; False where there is no program for it.

    first: where the launch's variants begin in the demand.
    """
    if (held := table.launch_program(on_problem, index)) is None:
        return False
    (execution, launch), arithmetic = held, core("kernrec.model.prior")
    compiled = arithmetic.compiled
    variants, figures = work.variants[place], work.rows[:, place]
    if not compiled:
        rows, variants, figures = map(arithmetic.rows, (rows, variants, figures))
    arithmetic.functions.launch_work(
        execution.values,
        execution.program.indexes,
        *launch.arguments,
        rows,
        table.geometry(on_problem, index).columns,
        launch.sizes(on_problem.tensor_bytes(rows)),
        first,
        table.launches[index].access.room(compiled),
        variants,
        figures,
    )
    return True


def _fill(figures: Array, table: StaticTable, index: int, rows: Array, on_problem: OnProblems, variants: Array) -> None:
    """Writes the work of one launch of these rows on a problem, by row of `LaunchWork`; variants: of its demand."""
    spec, launch, geometry = table.kernel.launches[index], table.launches[index], table.geometry(on_problem, index)
    column = on_problem.column
    geometry.columns.take(on_problem.configs(rows), axis=1, out=figures[CONCURRENT : PREFETCH + 1], mode="clip")
    resident = figures[CONCURRENT]
    blocks = figures[BLOCKS]
    blocks[:] = table.blocks(on_problem, index, rows)
    total_trips: Array | float = 0.0
    for number, loop in enumerate(launch.loops):
        total, depth = table.trips(on_problem, index, loop, rows, blocks)
        total_trips = total_trips + total
        figures[LOOPS + 2 * number] = total
        figures[LOOPS + 2 * number + 1] = depth
    figures[LONE_WAITS] = column(spec.waits, rows)
    concurrent = resident * float(table.gpu.sms)
    l2_bytes = float(table.gpu.l2_bytes)
    sizes = _tensor_bytes(table, index, rows, on_problem)
    if launch.sample is not None:
        extents = [np.zeros(len(rows)) + column(extent, rows) for extent in spec.grid]
        x, y, z = busy_grid(extents, launch.sample.busy.take(variants))
        in_order = dict.fromkeys(launch.access.tensors, 0.0) | dict(sizes)
        touched = footprints(launch.sample.table, variants, in_order, table.scratch)
        figures[DRAM_BYTES] = sampled_dram_bytes((x, y, z), touched, concurrent, l2_bytes)
        figures[DRAM_SLOWDOWN] = launch.sample.dram_slowdown(variants, (x, y, z), concurrent, l2_bytes)
        figures[SERIAL_CLK] = launch.sample.serial_clk(variants, blocks)
        figures[WAIT_ROUNDS] = launch.sample.every_round.take(variants)
        figures[OVERLAPPED] = launch.sample.overlapped.take(variants)
        return
    figures[DRAM_SLOWDOWN] = 1.0
    figures[WAIT_ROUNDS] = total_trips / blocks
    figures[OVERLAPPED] = np.nan
    visits, together = blocks, concurrent
    if spec.visits is not spec.blocks:
        visits, together = np.zeros(len(rows)) + column(spec.visits, rows), np.minimum(concurrent, blocks)
    extents = [column(extent, rows) for _, extent in spec.order]
    of_tensors = [sizes.get(name, 0.0) for name in launch.access.tensors]  # not all in each data type
    dram_bytes(launch.access, extents, of_tensors, visits, together, l2_bytes, figures[DRAM_BYTES])


def _tensor_bytes(table: StaticTable, index: int, rows: Array, on_problem: OnProblems) -> _Columns:
    """The size of each tensor and workspace that a launch of these rows reads or writes, and of others."""
    sizes: _Columns = on_problem.tensor_bytes(rows)
    used = [
        workspace for workspace in table.kernel.workspaces if workspace.name in table.launches[index].access.tensors
    ]
    if not used:
        return sizes
    return {**sizes} | {
        workspace.name: np.multiply(on_problem.column(workspace.elements, rows), float(ELEMENT_BYTES[workspace.dtype]))
        for workspace in used
    }
