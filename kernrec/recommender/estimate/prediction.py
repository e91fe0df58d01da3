"""The prior's prediction: time and energy of configs on one problem, before any power limit."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from kernrec.kernel import ProblemSpace
from kernrec.kernel.many_problems import ManyProblems, OnProblems
from kernrec.model.prior.dram_traffic import TensorAccess, dram_bytes, sampled_dram_bytes
from kernrec.model.prior.epilogue import epilogue
from kernrec.model.prior.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.prior.launch_time import LAUNCH_S, START_S, LaunchTime, LaunchWork, join, launch_time
from kernrec.op import Problem
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.sampled_launch import footprints
from kernrec.recommender.estimate.static_table import Array, StaticTable, Tables
from kernrec.util.light_dataclass import dataclass

_Columns = Mapping[str, Array | float]


@dataclass(frozen=True)
class Prediction:
    """Time and energy of C configs of a kernel on one problem; arrays (C,) unless said otherwise."""

    table: StaticTable
    on_problem: ProblemSpace
    """The space of the table on the problem."""
    rows: Array
    """Rows of the space, ascending."""
    nominal: NominalCosts
    """Seconds at the boost clock by what bounds them, joules at nominal voltage."""
    times: LaunchTime
    """Of all launches, one launch after the other; those of other kernels may be among them."""
    launches: tuple[tuple[int, Array], ...]
    """For each launch where it begins in `times`, and the positions in `rows` that perform it."""

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


def predict_all(tables: Tables, parts: Sequence[tuple[int, ProblemSpace, Array]]) -> Predictions:
    """The prior's time and energy of configs of several kernels on a problem.

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
    works: list[LaunchWork] = []
    launches: list[list[tuple[int, Array]]] = []
    places: list[Array] = []
    count = start = 0
    for number, on_problem, rows in parts:
        table = tables[number]
        launches.append([])
        for index, spec in enumerate(table.kernel.launches):
            positions = table.geometry(on_problem, index).performing(rows)
            if len(rows) and not len(positions):
                continue
            subset = rows.take(positions)
            tensors: dict[str, Array | float] = dict.fromkeys((*spec.reads, *spec.writes), 0.0)  # not all in each dtype
            tensors |= on_problem.tensor_bytes(subset)
            tensors |= {
                w.name: np.multiply(on_problem.column(w.elements, subset), float(ELEMENT_BYTES[w.dtype]))
                for w in table.kernel.workspaces
                if w.name in spec.reads or w.name in spec.writes
            }
            works.append(_work(table, index, subset, on_problem, tensors, columns[number][index]))
            launches[-1].append((start, positions))
            places.append(positions + count if count else positions)
            start += len(positions)
        count += len(rows)
    work = join(works)
    times = launch_time(first.gpu, demand, work)
    if first.calibration:
        times = first.calibration.apply_to_time(times)
    moved_j = work.dram_bytes * first.power.event_j("dram.bytes")
    nominal = np.zeros((5, count))
    core_s, dram_s, fixed_s, core_j, dram_j = nominal
    fixed_s += START_S
    start = 0
    for place in places:  # launches of a config are added in order
        part = slice(start, start + len(place))
        core_s[place] += times.core_s[part]
        dram_s[place] += times.dram_s[part]
        fixed_s[place] += LAUNCH_S
        core_j[place] += times.core_j[part]
        dram_j[place] += moved_j[part]
        start = part.stop
    _add_finishing(tables, parts, nominal)
    return nominal, times, [tuple(performed) for performed in launches]


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


def _work(
    table: StaticTable, index: int, rows: Array, on_problem: OnProblems, tensor_bytes: _Columns, column: int
) -> LaunchWork:
    """The work of one launch of these rows on a problem; column: where its variants begin in the demand."""
    spec, launch, geometry = table.kernel.launches[index], table.launches[index], table.geometry(on_problem, index)
    count = len(rows)

    def each(value: Array | float) -> Array:
        """One value for each row, also where it is the same for all."""
        return value if isinstance(value, np.ndarray) else np.full(count, value)

    gpu = table.gpu
    resident, warps, prefetch = geometry.columns.take(rows, axis=1)
    variants = launch.variant.take(rows)
    blocks = each(on_problem.column(spec.blocks, rows))
    loops = [table.trips(on_problem, index, loop, rows, blocks) for loop in launch.loops]
    concurrent = resident * float(gpu.sms)
    moved: Array | float
    slowdown: Array | float = 1.0
    serial: Array | float = 0.0
    rounds: Array | float = sum([total for total, _ in loops], 0.0) / blocks
    overlapped: Array | float = np.nan
    if launch.sample is not None:
        x, y, z = (each(on_problem.column(extent, rows)).astype(np.float64) for extent in spec.grid)
        touched = footprints(launch.sample.table, variants, tensor_bytes, table.scratch)
        moved = sampled_dram_bytes((x, y, z), touched, concurrent, float(gpu.l2_bytes))
        slowdown = launch.sample.dram_slowdown(variants, (x, y, z), concurrent, float(gpu.l2_bytes))
        serial = launch.sample.serial_clk(variants, blocks)
        rounds = launch.sample.every_round.take(variants)
        overlapped = launch.sample.overlapped.take(variants)
    else:
        order = [(axis, on_problem.column(extent, rows)) for axis, extent in spec.order]
        access = TensorAccess(launch.reads, launch.writes, tensor_bytes, table.scratch)
        visits, together = blocks, concurrent
        if spec.visits is not spec.blocks:
            visits, together = each(on_problem.column(spec.visits, rows)), np.minimum(concurrent, blocks)
        moved = dram_bytes(order, access, visits, together, float(gpu.l2_bytes))
    return LaunchWork(
        variants=variants + column,
        terms=(blocks, *[each(total) for total, _ in loops]),
        depth=tuple([each(depth) for _, depth in loops]),
        concurrent=resident,
        warps=warps,
        prefetch=prefetch,
        dram_bytes=each(moved),
        dram_slowdown=slowdown,
        serial_clk=serial,
        rounds=each(rounds),
        overlapped=overlapped,
        waits=on_problem.column(spec.waits, rows),
    )
