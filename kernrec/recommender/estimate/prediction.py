"""The prior's prediction: time and energy of configs on one problem, before any power limit."""

from collections.abc import Mapping, Sequence

import numpy as np

from kernrec.kernel import ProblemSpace
from kernrec.kernel.many_problems import ManyProblems, OnProblems
from kernrec.kernel.spec import WORKSPACE_BYTES
from kernrec.model.prior.dram_traffic import TensorAccess, dram_bytes, sampled_dram_bytes
from kernrec.model.prior.epilogue import epilogue
from kernrec.model.prior.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.prior.launch_time import LAUNCH_S, START_S, LaunchTime, LaunchWork, join, launch_time
from kernrec.op import Problem
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.static_table import Array, StaticTable
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
    """Of all launches, one launch after the other."""
    launches: tuple[tuple[int, Array], ...]
    """For each launch where it begins in `times`, and the positions in `rows` that perform it."""

    def limited(self, point: OperatingPoint = DEFAULT_POINT) -> LimitedCosts:
        """Latency, power and energy at an operating point."""
        return self.table.power.apply_power_limit(self.nominal, point.power_limit_w, point.clock_hz)

    def limited_at(self, points: Sequence[OperatingPoint], where: Array | None = None) -> LimitedCosts:
        """Latency, power and energy of the candidates at positions `where` (None: all), (points, len(where))."""
        nominal = self.nominal
        if where is not None:
            parts = (nominal.core_s, nominal.dram_s, nominal.fixed_s, nominal.core_j, nominal.dram_j)
            nominal = NominalCosts(*(np.take(part, where) for part in parts))
        return self.table.power.apply_power_limits(nominal, [(point.power_limit_w, point.clock_hz) for point in points])

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


def predict(table: StaticTable, on_problem: ProblemSpace, rows: Array) -> Prediction:
    """The prior's time and energy of the configs `rows` (ascending) on a problem."""
    return Prediction(table, on_problem, rows, *nominal_costs(table, on_problem, rows))


def nominal_costs(
    table: StaticTable, on_problem: OnProblems, rows: Array
) -> tuple[NominalCosts, LaunchTime, tuple[tuple[int, Array], ...]]:
    """The fields `nominal`, `times` and `launches` of a `Prediction`, of a problem or of many."""
    count = len(rows)
    performed: list[Array] = []
    works: list[LaunchWork] = []
    for index, spec in enumerate(table.kernel.launches):
        positions = table.geometry(on_problem, index).performed.take(rows).nonzero()[0]
        if count and not len(positions):
            continue
        subset = rows.take(positions)
        tensors: dict[str, Array | float] = dict.fromkeys((*spec.reads, *spec.writes), 0.0)  # not all in each dtype
        tensors |= on_problem.tensor_bytes(subset)
        tensors |= {
            w.name: np.multiply(on_problem.column(w.elements, subset), float(WORKSPACE_BYTES[w.dtype]))
            for w in table.kernel.workspaces
            if w.name in spec.reads or w.name in spec.writes
        }
        performed.append(positions)
        works.append(_work(table, index, subset, on_problem, tensors))
    # All launches at once: a pass over the arrays costs more by its calls than by their length.
    work = join(works)
    times = launch_time(table.gpu, table.demand[0], work)
    if table.calibration:
        times = table.calibration.apply_to_time(times)
    moved_j = work.dram_bytes * table.power.event_j("dram.bytes")
    sums = np.zeros((5, count))
    sums[4] = START_S
    starts, start = [], 0
    for positions in performed:
        part = slice(start, start + len(positions))
        for total, value in zip(sums, (times.core_s, times.dram_s, times.core_j, moved_j), strict=False):
            total[positions] += value[part]
        sums[4][positions] += LAUNCH_S
        starts.append(start)
        start = part.stop
    # A profile of sampled blocks is of this very problem, and has it all.
    if not table.kernel.sampled:
        more = [_finishing(table, problem) for problem in on_problem.problems]
        if isinstance(on_problem, ManyProblems):
            sums[:4] += np.array(more).T.take(on_problem.numbers(rows), axis=1)
        elif any(more[0]):
            sums[:4] += np.array(more).T
    core_s, dram_s, core_j, dram_j, fixed_s = sums
    nominal = NominalCosts(core_s, dram_s, fixed_s, core_j, dram_j)
    return nominal, times, tuple(zip(starts, performed, strict=True))


def _finishing(table: StaticTable, problem: Problem) -> tuple[float, float, float, float]:
    """(core_s, dram_s, core_j, dram_j) of a problem's epilogue."""
    more = epilogue(table.gpu, table.power, problem)
    if more is None:
        return 0.0, 0.0, 0.0, 0.0
    slower = table.calibration.core_time if table.calibration else 1.0
    moved_j = more.dram_bytes * table.power.event_j("dram.bytes")
    return slower * more.core_s, more.dram_bytes / table.bandwidth, more.core_j, moved_j


def _work(table: StaticTable, index: int, rows: Array, on_problem: OnProblems, tensor_bytes: _Columns) -> LaunchWork:
    """What one launch of these rows does on a problem."""
    spec, launch, geometry = table.kernel.launches[index], table.launches[index], table.geometry(on_problem, index)

    def each(value: Array | float) -> Array:
        """One value for each row, also where it is the same for all."""
        return value if isinstance(value, np.ndarray) else np.full(len(rows), value)

    gpu = table.gpu
    resident = geometry.resident.take(rows)
    blocks = each(on_problem.column(spec.blocks, rows))
    loops = [table.trips(on_problem, index, loop, rows, blocks) for loop in launch.loops]
    concurrent = resident * float(gpu.sms)
    moved: Array | float
    slowdown: Array | float = 1.0
    serial: Array | float = 0.0
    rounds: Array | float = sum([total for total, _ in loops], 0.0) / blocks
    if launch.sample is not None:
        x, y, z = (each(on_problem.column(extent, rows)).astype(np.float64) for extent in spec.grid)
        footprints = launch.sample.footprints(launch.variant.take(rows), tensor_bytes, table.scratch)
        moved = sampled_dram_bytes((x, y, z), footprints, concurrent, float(gpu.l2_bytes))
        variants = launch.variant.take(rows)
        slowdown = launch.sample.dram_slowdown(variants, (x, y, z), concurrent, float(gpu.l2_bytes))
        serial = launch.sample.serial_clk(variants, blocks)
        rounds = launch.sample.every_round.take(variants)
    else:
        order = [(axis, on_problem.column(extent, rows)) for axis, extent in spec.order]
        access = TensorAccess(launch.reads, launch.writes, tensor_bytes, table.scratch)
        moved = dram_bytes(order, access, blocks, concurrent, float(gpu.l2_bytes))
    return LaunchWork(
        variants=launch.variant.take(rows) + table.demand[1][index],
        terms=(blocks, *[each(total) for total, _ in loops]),
        depth=tuple([each(depth) for _, depth in loops]),
        concurrent=resident,
        warps=geometry.warps.take(rows),
        prefetch=geometry.prefetch.take(rows),
        dram_bytes=each(moved),
        dram_slowdown=each(slowdown),
        serial_clk=each(serial),
        rounds=each(rounds),
    )
