"""Predict time and energy of configs on one problem with the analytical model, before any power limit."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from kernrec.kernel import ProblemSpace
from kernrec.kernel.many_problems import ManyProblems, OnProblems
from kernrec.model.prior.constants import (
    BLOCKS,
    CONCURRENT,
    DRAM_BYTES,
    DRAM_SLOWDOWN,
    LONE_WAITS,
    LOOPS,
    OVERLAPPED,
    PREFETCH,
    SERIAL_CLK,
    START_S,
    TIMES,
    WAIT_ROUNDS,
)
from kernrec.model.prior.demand import PIPES
from kernrec.model.prior.dram_traffic import dram_bytes, sampled_dram_bytes
from kernrec.model.prior.epilogue import epilogue
from kernrec.model.prior.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.prior.launch_time import RESOURCES, LaunchTime, LaunchWork, time_of_work
from kernrec.op import Problem
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.recommender.estimate.launch_program import LaunchProgram
from kernrec.recommender.estimate.launch_table import LaunchGeometry
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.sampled_launch import busy_grid, footprints
from kernrec.recommender.estimate.static_table import Array, StaticTable
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

_Columns = Mapping[str, Array | float]


@dataclass(frozen=True, eq=False)
class Performed:
    """One launch of a prediction's configs, for the configs that perform it."""

    positions: Array
    """Positions of these configs in the rows of the prediction, ascending."""
    times: LaunchTime
    geometry: LaunchGeometry
    start: int = 0
    """Index of the first of these configs in `times`."""


@dataclass(frozen=True)
class Prediction:
    """Time and energy of C configs of a kernel on one problem; arrays (C,) unless stated otherwise."""

    table: StaticTable
    on_problem: OnProblems
    """Space of the table on the problem, or on several problems, whose configs are then concatenated."""
    rows: Array
    """Rows of `on_problem`, ascending."""
    costs: Array
    """Fields of `nominal` as rows, (5, C)."""
    longest: Array
    """Seconds of core or DRAM in the longest launch of each config, and the index in `RESOURCES` of its bottleneck; (2,
    C)."""
    launches: tuple[Performed, ...]
    """Launches in order, without those that no config performs."""

    def by_problem(self, starts: Sequence[int], on_problems: Sequence[ProblemSpace]) -> "Iterator[Prediction]":
        """Yield the prediction for each of several problems.

        Args:
            starts: index in `rows` of each problem's first config, then the total.
            on_problems: space on each problem.
        """
        if len(on_problems) == 1:
            yield self
            return
        ends = [(launch, launch.positions.searchsorted(starts).tolist()) for launch in self.launches]
        configs = self.on_problem.configs(self.rows)
        for number, (on_problem, (start, end)) in enumerate(zip(on_problems, pairwise(starts), strict=True)):
            launches = [
                Performed(launch.positions[first:last] - start, launch.times, launch.geometry, first)
                for launch, places in ends
                if (first := places[number]) < (last := places[number + 1])
            ]
            own = self.costs[:, start:end], self.longest[:, start:end]
            yield Prediction(self.table, on_problem, configs[start:end], *own, tuple(launches))

    @property
    def nominal(self) -> NominalCosts:
        """Seconds at the boost clock by resource, and joules at nominal voltage."""
        return NominalCosts(*self.costs)

    def limited(self, point: OperatingPoint = DEFAULT_POINT) -> LimitedCosts:
        """Return latency, power and energy at an operating point."""
        return self.table.power.apply_power_limit(self.nominal, point.power_limit_w, point.clock_hz)

    def at(self, position: int) -> NominalCosts:
        """Return the costs of one candidate before any power limit."""
        return NominalCosts(*self.costs[:, position].tolist())

    def bottleneck(self, position: int) -> str:
        """Return the resource that takes longest in the longest launch of the candidate at `position`."""
        return RESOURCES[int(self.longest.item(1, position))]

    def performed(self, position: int) -> list[tuple[LaunchTime, int]]:
        """Return the times of each launch of the candidate at `position`, in order, with its index in them."""
        row = self.on_problem.configs(self.rows[position : position + 1]).item()
        return [
            (launch.times, launch.start + int(launch.positions.searchsorted(position)))
            for launch in self.launches
            if launch.geometry.performed.item(row)
        ]


def predict(table: StaticTable, on_problem: ProblemSpace, rows: Array) -> Prediction:
    """Return the analytical model's time and energy of the configs `rows` (ascending) on a problem."""
    (kernel,), _ = predict_all([(table, on_problem, rows)])
    return kernel


def predict_all(parts: Sequence[tuple[StaticTable, OnProblems, Array]]) -> tuple[list[Prediction], Array]:
    """Return the analytical model's time and energy of configs of several kernels on one or more problems.

    Args:
        parts: for each kernel its table, its space on the problem, and rows of it, ascending.

    Returns:
        The prediction of each kernel, and the fields of `NominalCosts` of all configs as rows, (5, C).
    """
    starts = list(accumulate([len(rows) for _, _, rows in parts], initial=0))
    nominal, longest = np.zeros((5, starts[-1])), np.zeros((2, starts[-1]))
    nominal[2] = START_S
    places = [slice(*ends) for ends in pairwise(starts)]
    kernels = [
        _predicted(*part, nominal[:, place], longest[:, place]) for part, place in zip(parts, places, strict=True)
    ]
    return kernels, nominal


def _predicted(table: StaticTable, on_problem: OnProblems, rows: Array, nominal: Array, longest: Array) -> Prediction:
    """Return the prediction of one kernel, and add its launches to `nominal`, (5, C), and `longest`, (2, C)."""
    configs, launches, programs = on_problem.configs(rows), [], table.programs(on_problem)
    for index, geometry in enumerate(table.geometries(on_problem)):
        positions = geometry.performing(configs)
        if not len(positions):
            continue
        own = rows if len(positions) == len(rows) else rows.take(positions)
        if programs is None:
            times = _by_columns(table, index, own, on_problem, positions, nominal, longest)
        else:
            launch = programs[index], own, geometry, on_problem, positions
            times = _by_program(table, *launch, nominal, longest)
        launches.append(Performed(positions, times, geometry))
    # A profile from sampled blocks belongs to this problem and includes its epilogue.
    if not table.kernel.sampled:
        _add_finishing(table, on_problem, rows, nominal)
    return Prediction(table, on_problem, rows, nominal, longest, tuple(launches))


def _by_program(
    table: StaticTable,
    program: LaunchProgram,
    rows: Array,
    geometry: LaunchGeometry,
    on_problem: OnProblems,
    positions: Array,
    nominal: Array,
    longest: Array,
) -> LaunchTime:
    """Add one launch of these rows to the nominal costs at `positions`, with one engine call per problem."""
    configs, plan = on_problem.configs(rows), program.plan
    first_pipe, first_time = LOOPS + 2 * program.loops, LOOPS + 2 * program.loops + len(PIPES)
    variants, figures = np.empty(len(rows), np.int64), np.empty((first_time + TIMES, len(rows)))
    work, pipe_clk, times = figures[:first_pipe], figures[first_pipe:first_time], figures[first_time:]
    for alone, first, last in on_problem.parts(rows):
        sizes, values = program.sizes(alone.problem.tensor_bytes), alone.execution.in_engine  # type: ignore[union-attr]
        plan.fill_work(values, configs, geometry.columns, sizes, first, last, variants, work)
    plan.add_costs(variants, work, positions, table.dram_byte_j, pipe_clk, times, nominal, longest)
    return LaunchTime(pipe_clk, times, work[DRAM_BYTES])


def _by_columns(
    table: StaticTable,
    index: int,
    rows: Array,
    on_problem: OnProblems,
    positions: Array,
    nominal: Array,
    longest: Array,
) -> LaunchTime:
    """Add one launch like `_by_program`, from its expressions one by one."""
    launch = table.launches[index]
    work = LaunchWork.empty(len(rows), len(launch.loops))
    launch.variant.take(on_problem.configs(rows), out=work.variants, mode="clip")
    _fill(work.rows, table, index, rows, on_problem, work.variants)
    times = time_of_work(table.device, launch.demand, work)
    query.add_launch(positions, times.rows, work.rows, table.dram_byte_j, nominal, longest)
    return times


_DYNAMIC = [0, 1, 3, 4]
"""Rows of `NominalCosts` that an epilogue adds to: all except the launch overhead."""


def _add_finishing(table: StaticTable, on_problem: OnProblems, rows: Array, nominal: Array) -> None:
    """Add the epilogues of problems, which are equal for every kernel on a GPU."""
    if isinstance(on_problem, ManyProblems):
        more = np.array([_finishing(table, problem) for problem in on_problem.problems])
        nominal[_DYNAMIC] += more.T.take(on_problem.numbers(rows), axis=1)
    elif any(alone := _finishing(table, on_problem.problem)):
        nominal[_DYNAMIC] += np.array([alone]).T


def _finishing(table: StaticTable, problem: Problem) -> tuple[float, float, float, float]:
    """Return core_s, dram_s, core_j and dram_j of a problem's epilogue."""
    more = epilogue(table.gpu, table.power, problem)
    if more is None:
        return 0.0, 0.0, 0.0, 0.0
    core_s, core_j, dram_bytes = more
    slower = table.calibration.core_time if table.calibration else 1.0
    return slower * core_s, dram_bytes / table.bandwidth, core_j, dram_bytes * table.dram_byte_j


def _fill(figures: Array, table: StaticTable, index: int, rows: Array, on_problem: OnProblems, variants: Array) -> None:
    """Write the work of one launch of these rows on a problem, by row of `LaunchWork`.

    Args:
        figures: destination.
        table: table of the kernel.
        index: number of the launch.
        rows: the rows.
        on_problem: the space on the problem.
        variants: rows of the launch's demand.
    """
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
    of_tensors = [sizes.get(name, 0.0) for name in launch.access.tensors]  # a data type may lack some tensors
    dram_bytes(launch.access, extents, of_tensors, visits, together, l2_bytes, figures[DRAM_BYTES])


def _tensor_bytes(table: StaticTable, index: int, rows: Array, on_problem: OnProblems) -> _Columns:
    """Return the size of each tensor and workspace that a launch of these rows accesses, and possibly of others."""
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
