"""The configs of one kernel on one GPU, joined with their static profiles and ready to be estimated.

Everything that does not depend on the problem is done once, here; `estimate` costs one pass of array arithmetic.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernrec.errors import KernrecError
from kernrec.gpu import GPU, Occupancy, occupancy
from kernrec.kernel import Expression, Kernel, Space, SpaceAt
from kernrec.kernel.spec import WORKSPACE_BYTES
from kernrec.model.prior.calibration import Calibration
from kernrec.model.prior.demand import CORE_J, PIPES, Demand, demand, side_by_side
from kernrec.model.prior.dram_traffic import TensorAccess, dram_bytes, sampled_dram_bytes
from kernrec.model.prior.epilogue import epilogue
from kernrec.model.prior.launch_time import LAUNCH_S, START_S, LaunchTime, LaunchWork, alone_clk, join, launch_time
from kernrec.model.prior.microarchitecture import microarchitecture
from kernrec.model.prior.power import LimitedCosts, NominalCosts, PowerModel
from kernrec.op import Problem
from kernrec.recommender.estimate.sampled_launch import SampledLaunch, read_sample
from kernrec.store import ProfileTable

Array = np.ndarray

SHORTLIST = 512
"""Configs that are estimated in full; of more, the most promising. What that loses: `tools/check_shortlist.py`."""

_SECOND_PASS_CLK = 2500.0  # blocks of little work: started, loaded once, stored


@dataclass(frozen=True)
class Prediction:
    """Time and energy of the candidates `rows` on one problem before any power limit; arrays (C,).

    core_s, dram_s, fixed_s: seconds at the boost clock by what bounds them; core_j, dram_j: joules at nominal voltage.
    times: of all launches, one after the other; launches: where each begins there, and the positions in `rows` that
    perform it.
    """

    rows: Array
    core_s: Array
    dram_s: Array
    fixed_s: Array
    core_j: Array
    dram_j: Array
    times: LaunchTime
    launches: tuple[tuple[int, Array], ...]

    def bottleneck(self, position: int) -> str:
        """What limits the longest launch of the candidate at this position of `rows`."""
        places = self.places(position)
        return self.times.bottleneck(max(places, key=lambda at: max(self.times.core_s[at], self.times.dram_s[at])))

    def places(self, position: int) -> list[int]:
        """Where the launches of the candidate at this position of `rows` are in `times`, in order."""
        found = []
        for start, performed in self.launches:
            at = int(np.searchsorted(performed, position))
            if at < len(performed) and performed[at] == position:
                found.append(start + at)
        return found


class Candidates:
    """The configs of `kernel` for one GPU, dtype and layout whose code is known to fit and does not spill.

    profiles: by launch index. unprofiled: codes of the space that the database holds no profile of. problem: the one
    that the profiles hold on, of a kernel profiled by a sample of blocks; None where they hold on all. power: of the
    data sheet; `self.power` is calibrated where there is a `calibration`. spilling: codes that spill; spilled_in: of a
    sampled kernel all that is profiled does, and is taken nevertheless.
    """

    def __init__(
        self,
        kernel: Kernel,
        gpu: GPU,
        power: PowerModel,
        dtype: str,
        layout: str,
        profiles: Mapping[int, ProfileTable],
        problem: Problem | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.kernel = kernel
        self.gpu = gpu
        self.calibration = calibration
        self.power = power = calibration.apply_to_power(power) if calibration else power
        self.space = Space(kernel, gpu.sm, gpu.limits, dtype, layout)
        codes = self.space.variants if problem is None else self.space.configs_on(problem)
        spills, profiled = np.zeros(len(codes.keys), dtype=bool), np.ones(len(codes.keys), dtype=bool)
        unprofiled = profiled.copy()
        self._launches: list[_Launch] = []
        for index in range(len(kernel.launches)):
            if (table := profiles.get(index)) is None:
                raise KernrecError(
                    f"no database holds profiles of {kernel.name} {kernel.hash} for {gpu.arch}"
                    " (tools/build_database.py makes them)"
                )
            at = {key: row for row, key in enumerate(table.variant_keys)}
            found = np.array([at.get(key, -1) for key in codes.keys], dtype=np.int64)
            unprofiled &= found < 0  # a code need not have every launch
            spills |= (found >= 0) & (table.spill_bytes[found] > 0)
            profiled &= found >= 0
            sample = None
            if problem is not None:
                sample = read_sample(kernel, index, table, found, self.space.at(problem), gpu)
                table = sample.table
            self._launches.append(
                _Launch(
                    demand(gpu, power, table.metrics, table.terms, table.counts),
                    found[codes.index],
                    bool((found < 0).any()),
                    table.registers,
                    table.static_smem_bytes,
                    table.terms[1:],
                    {name: frozenset(axes) for name, axes in kernel.launches[index].reads.items()},
                    {name: frozenset(axes) for name, axes in kernel.launches[index].writes.items()},
                    sample,
                    table,
                )
            )
        self.unprofiled, self.spilling = int(unprofiled.sum()), int(spills.sum())
        # What spilling moves is counted nowhere, so such code is left out; but some users' kernels have no other.
        self.spilled_in = problem is not None and bool(profiled.any() and spills[profiled].all())
        self._usable = (~spills | self.spilled_in)[codes.index]
        self._demand, self._starts = side_by_side([launch.demand for launch in self._launches])
        self._memory_clk = microarchitecture(gpu).dram_latency_clk
        self._scratch = frozenset(w.name for w in kernel.workspaces)
        self._geometries: dict[int, _Geometry] = {}

    def __len__(self) -> int:
        return len(self.space)

    def rows(self, at: SpaceAt, measured: Array | None = None) -> Array:
        """Row numbers of the configs that can run the problem, and of whose every launch there is a profile.

        measured: rows known to run, which count even where their code spills.
        """
        usable = self._usable
        if measured is not None and len(measured):
            usable = usable.copy()
            usable[measured] = True
        can = at.valid & usable & (self._geometry(at, 0).resident > 0)
        for index, launch in enumerate(self._launches):
            if launch.incomplete:
                can &= (launch.code >= 0) | ~self._geometry(at, index).performed
        return np.flatnonzero(can)

    def shortlist(self, at: SpaceAt, rows: Array) -> Array:
        """At most `SHORTLIST` of `rows`: those that look fastest, and those that look most frugal.

        Quick measures: rounds of blocks times the longer of work and latency, where of a block's pipes only the busiest
        counts; and the joules of the core. Of a second pass only that it is launched counts, and DRAM not at all.
        """
        if len(rows) <= SHORTLIST:
            return rows
        clocks, joules = np.zeros(len(rows)), np.zeros(len(rows))
        for index, spec in enumerate(self.kernel.launches):
            geometry = self._geometry(at, index)
            positions = np.flatnonzero(geometry.performed.take(rows))
            clocks[positions] += LAUNCH_S * self.gpu.boost_clock_hz + _SECOND_PASS_CLK * (index > 0)
            if spec.entry == self.kernel.launches[0].entry:
                found = self._quick(at, index, rows.take(positions), geometry)
                clocks[positions] += found[0]
                joules[positions] += found[1]
        slower = self.calibration.core_time if self.calibration else 1.0
        joules += clocks * (slower * self.power.static_w / self.gpu.boost_clock_hz)
        promising = np.zeros(len(rows), dtype=bool)
        for cost in (clocks, joules):
            promising[np.argpartition(cost, SHORTLIST // 2)[: SHORTLIST // 2]] = True
        return rows[promising]

    def _quick(self, at: SpaceAt, index: int, rows: Array, geometry: "_Geometry") -> tuple[Array, Array]:
        """(clocks, joules of the core) of one launch of these rows, quickly."""
        spec, launch = self.kernel.launches[index], self._launches[index]
        blocks = at.column(spec.blocks, rows)
        (work, alone, dynamic), *loops = ([rate.take(rows) for rate in term] for term in geometry.quick)
        dynamic *= blocks
        trips: Array | float = 0.0
        for (work_trip, alone_trip, dynamic_trip), loop in zip(loops, launch.loops, strict=True):
            total, depth = self._trips(at, index, loop, rows, blocks)
            trips = trips + depth
            work += work_trip * depth
            alone += alone_trip * depth
            dynamic += dynamic_trip * total
        waits = trips * (self._memory_clk / np.maximum(geometry.prefetch.take(rows), 1.0))
        per_sm = np.ceil(blocks / self.gpu.sms)
        rounds = np.ceil(per_sm / geometry.resident.take(rows))
        return np.maximum(per_sm * work, rounds * (np.maximum(alone, waits) + self._memory_clk)), dynamic

    def predict(self, problem: Problem, at: SpaceAt, rows: Array) -> Prediction:
        """The prior's time and energy of the configs `rows` on a problem."""
        count = len(rows)
        tensors: dict[str, Array | float] = {name: float(t.bytes) for name, t in problem.tensors.items()}
        performed: list[Array] = []
        works: list[LaunchWork] = []
        for index, spec in enumerate(self.kernel.launches):
            positions = np.flatnonzero(self._geometry(at, index).performed.take(rows))
            if count and not len(positions):
                continue
            subset = rows.take(positions)
            scratch = {
                w.name: np.multiply(at.column(w.elements, subset), float(WORKSPACE_BYTES[w.dtype]))
                for w in self.kernel.workspaces
                if w.name in spec.reads or w.name in spec.writes
            }
            performed.append(positions)
            works.append(self._work(index, subset, at, tensors | scratch))
        # All launches at once: a pass over the arrays costs more by its calls than by their length.
        work = join(works)
        times = launch_time(self.gpu, self._demand, work)
        if self.calibration:
            times = self.calibration.apply_to_time(times)
        moved_j = work.dram_bytes * self.power.event_j("dram.bytes")
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
        if not self.kernel.sampled and (more := epilogue(self.gpu, self.power, problem)):
            slower = self.calibration.core_time if self.calibration else 1.0
            more_s, more_j = more.dram_bytes / self.bandwidth, more.dram_bytes * self.power.event_j("dram.bytes")
            sums[:4] += np.array([[slower * more.core_s], [more_s], [more.core_j], [more_j]])
        core_s, dram_s, core_j, dram_j, fixed_s = sums
        return Prediction(
            rows, core_s, dram_s, fixed_s, core_j, dram_j, times, tuple(zip(starts, performed, strict=True))
        )

    def apply_power_limit(
        self, prediction: Prediction, limit_w: float | None = None, clock_hz: float | None = None
    ) -> LimitedCosts:
        """Latency, power and energy of a prediction under a power limit (the TDP) and at a clock (boost)."""
        p = prediction
        nominal = NominalCosts(p.core_s, p.dram_s, p.fixed_s, p.core_j, p.dram_j)
        return self.power.apply_power_limit(nominal, limit_w, clock_hz)

    @property
    def bandwidth(self) -> float:
        """Bytes per second past L2 that a launch is taken to reach."""
        calibrated = self.calibration.dram_time if self.calibration else 1.0
        return self.gpu.memory_bandwidth * microarchitecture(self.gpu).dram_efficiency / calibrated

    def shape(self, at: SpaceAt, rows: Array) -> tuple[Array, ...]:
        """(threads, blocks, resident blocks, registers, shared bytes) of these rows' first launch; arrays (C,)."""
        spec, launch, resident = self.kernel.launches[0], self._launches[0], self._geometry(at, 0).resident.take(rows)
        threads, blocks, dynamic = (
            at.column(e, rows) + np.zeros(len(rows)) for e in (spec.threads, spec.blocks, spec.shared)
        )
        code = launch.code.take(rows)
        return threads, blocks, resident, launch.registers.take(code), launch.static_smem.take(code) + dynamic

    def performed(self, at: SpaceAt, row: int) -> list[int]:
        """The launches, by number, that one config performs."""
        return [i for i in range(len(self._launches)) if self._geometry(at, i).performed[row]]

    def counts(self, at: SpaceAt, index: int, row: int, asked: bool = False) -> dict[str, float]:
        """What launch number `index` of one config does on the problem, in total, by metric of its profile.

        Of a kernel profiled by a sample of blocks, sectors that L1 answers are only counted where all `asked` for are.
        """
        launch, rows = self._launches[index], np.array([row])
        table = launch.sample.asked if asked and launch.sample is not None else launch.table
        blocks = at.column(self.kernel.launches[index].blocks, rows) + np.zeros(1)
        totals = [blocks, *(self._trips(at, index, loop, rows, blocks)[0] + np.zeros(1) for loop in launch.loops)]
        values = table.counts[launch.code[row]] @ np.array([float(total[0]) for total in totals])
        return dict(zip(table.metrics, values.tolist(), strict=True))

    def held(self, at: SpaceAt, index: int, row: int) -> tuple[int, int, Occupancy[int, float]]:
        """(registers per thread, bytes of shared memory per block, occupancy) of a launch of one config."""
        launch, rows = self._launches[index], np.array([row])
        spec = self.kernel.launches[index]
        threads, dynamic = (int((at.column(e, rows) + np.zeros(1, np.int64))[0]) for e in (spec.threads, spec.shared))
        registers = int(launch.registers[launch.code[row]])
        shared = int(launch.static_smem[launch.code[row]]) + dynamic
        return registers, shared, occupancy(self.gpu.limits, threads, registers, shared)

    def occupancy(self, at: SpaceAt, row: int) -> float:
        """Resident warps over the most an SM holds, of the first launch of one config."""
        return float(self._geometry(at, 0).occupancy[row])

    def occupancy_choice(self, at: SpaceAt, rows: Array) -> int:
        """The row, of `rows`, that the occupancy heuristic picks.

        The heuristic is that of `cudaOccupancyMaxPotentialBlockSize`: the most resident warps, of equals the largest
        block; of equals the first config in canonical order, for it does not look further.
        """
        geometry = self._geometry(at, 0)
        score = geometry.occupancy.take(rows) * 4096.0 + geometry.warps.take(rows)
        return int(rows[score.argmax()])

    def _trips(self, at: SpaceAt, index: int, loop: str, rows: Array, blocks: Array) -> tuple[Array, Array]:
        """(trips of a loop over the whole grid, trips in the longest block) of these rows."""
        spec, launch = self.kernel.launches[index], self._launches[index]
        if launch.sample is not None:
            rounds = launch.sample.rounds.take(launch.code.take(rows))
            return rounds * blocks, rounds
        return at.column(spec.trips[loop], rows), at.column(spec.depth[loop], rows)

    def _work(self, index: int, rows: Array, at: SpaceAt, tensor_bytes: Mapping[str, Array | float]) -> LaunchWork:
        spec, launch, geometry = self.kernel.launches[index], self._launches[index], self._geometry(at, index)

        def each(value: Array | float) -> Array:
            """One value for each row, also where it is the same for all."""
            return value if isinstance(value, np.ndarray) else np.full(len(rows), value)

        resident = geometry.resident.take(rows)
        blocks = each(at.column(spec.blocks, rows))
        loops = [self._trips(at, index, loop, rows, blocks) for loop in launch.loops]
        if launch.sample is not None:
            x, y, z = (each(at.column(extent, rows)).astype(np.float64) for extent in spec.grid)
            footprints = launch.sample.footprints(launch.code.take(rows), tensor_bytes, self._scratch)
            moved = sampled_dram_bytes((x, y, z), footprints, resident * float(self.gpu.sms), float(self.gpu.l2_bytes))
        else:
            moved = self._declared_traffic(index, rows, at, tensor_bytes, blocks, resident)
        return LaunchWork(
            variants=launch.code.take(rows) + self._starts[index],
            terms=(blocks, *[each(total) for total, _ in loops]),
            depth=tuple([each(depth) for _, depth in loops]),
            concurrent=resident,
            warps=geometry.warps.take(rows),
            prefetch=geometry.prefetch.take(rows),
            dram_bytes=each(moved),
        )

    def _declared_traffic(
        self,
        index: int,
        rows: Array,
        at: SpaceAt,
        tensor_bytes: Mapping[str, Array | float],
        blocks: Array,
        resident: Array,
    ) -> Array | float:
        """Bytes past L2 of a launch whose spec says how its blocks walk the tensors."""
        spec, launch = self.kernel.launches[index], self._launches[index]
        return dram_bytes(
            [(axis, at.column(extent, rows)) for axis, extent in spec.order],
            TensorAccess(launch.reads, launch.writes, tensor_bytes, self._scratch),
            blocks,
            resident * float(self.gpu.sms),
            float(self.gpu.l2_bytes),
        )

    def _geometry(self, at: SpaceAt, index: int) -> "_Geometry":
        """What of a launch is, for most kernels, the same on every problem; kept where it is."""
        if known := self._geometries.get(index):
            return known
        spec, launch = self.kernel.launches[index], self._launches[index]
        when = [] if spec.when is None else [spec.when]

        def column(expression: Expression) -> Array:
            return np.broadcast_to(np.asarray(at.column(expression), dtype=np.float64), (len(self.space),))

        warps = np.ceil(column(spec.threads) / 32.0)
        held = occupancy(
            self.gpu.limits,
            column(spec.threads).astype(np.int64),
            launch.registers[launch.code],
            launch.static_smem[launch.code] + column(spec.shared).astype(np.int64),
        )
        geometry = _Geometry(
            performed=np.ones(len(self.space), dtype=bool) if spec.when is None else column(spec.when) != 0,
            warps=warps,
            prefetch=column(spec.prefetch),
            resident=held.blocks.astype(np.float64),
            occupancy=held.fraction,
            quick=tuple(
                (
                    rates[: len(PIPES)].max(axis=0).take(launch.code),
                    alone_clk(rates, warps, launch.code),
                    rates[CORE_J].take(launch.code),
                )
                for rates in launch.demand.rates
            ),
        )
        if all(self.space.fixed(e) for e in (spec.threads, spec.shared, spec.prefetch, *when)):
            self._geometries[index] = geometry
        return geometry


@dataclass(frozen=True)
class _Launch:
    """One launch of all codes: code: row of the space -> row of the profile table (-1: not profiled).

    sample: of a kernel profiled by a sample of blocks, what its spec does not say.
    """

    demand: Demand
    code: Array
    incomplete: bool
    registers: Array
    static_smem: Array
    loops: tuple[str, ...]
    reads: Mapping[str, frozenset[str]]
    writes: Mapping[str, frozenset[str]]
    sample: SampledLaunch | None
    table: ProfileTable


@dataclass(frozen=True)
class _Geometry:
    """One launch of every row of a space; arrays (rows,).

    performed: whether the config performs it. resident: blocks per SM, 0 where it cannot be launched. quick: for each
    term, clocks of the busiest pipe, clocks of a block alone, and joules of the core.
    """

    performed: Array
    warps: Array
    prefetch: Array
    resident: Array
    occupancy: Array
    quick: tuple[tuple[Array, Array, Array], ...]
