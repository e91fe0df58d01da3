"""The configs of one kernel on one GPU, joined with their static profiles and ready to be estimated.

Everything that does not depend on the problem is done once, here; `estimate` costs one pass of array arithmetic.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernrec.errors import KernrecError
from kernrec.gpu import GPU, occupancy
from kernrec.kernel import Expression, Kernel, Space, SpaceAt
from kernrec.kernel.spec import WORKSPACE_BYTES
from kernrec.model.demand import CORE_J, PIPES, Demand, demand
from kernrec.model.power import PowerModel
from kernrec.model.prior import LAUNCH_S, LaunchTime, Walk, alone_clk, launch_time, machine
from kernrec.model.traffic import dram_bytes
from kernrec.op import Problem
from kernrec.store import ProfileTable

Array = np.ndarray

SHORTLIST = 512
"""Configs that are estimated in full; of more, the most promising. What that loses: `tools/check_shortlist.py`."""


_SECOND_PASS_CLK = 2500.0  # blocks of little work: started, loaded once, stored


@dataclass(frozen=True)
class Prediction:
    """Time and energy of the candidates `rows` on one problem before any power limit; arrays (C,).

    core_s, dram_s, fixed_s: seconds at the boost clock by what bounds them; core_j, dram_j: joules at nominal voltage.
    launches: for each launch of the kernel, its times and the positions in `rows` that perform it.
    """

    rows: Array
    core_s: Array
    dram_s: Array
    fixed_s: Array
    core_j: Array
    dram_j: Array
    launches: tuple[tuple[LaunchTime, Array], ...]

    def limit(self, position: int) -> str:
        """What limits the longest launch of the candidate at this position of `rows`."""
        longest, limit = -1.0, ""
        for times, performed in self.launches:
            at = int(np.searchsorted(performed, position))
            if at < len(performed) and performed[at] == position:
                seconds = float(max(times.core_s[at], times.dram_s[at]))
                if seconds > longest:
                    longest, limit = seconds, times.limit(at)
        return limit


class Candidates:
    """The configs of `kernel` for one GPU, dtype and layout whose code is known to fit and does not spill.

    profiles: by launch index. unprofiled: codes of the space that the database holds no profile of.
    """

    def __init__(
        self, kernel: Kernel, gpu: GPU, power: PowerModel, dtype: str, layout: str, profiles: Mapping[int, ProfileTable]
    ) -> None:
        self.kernel = kernel
        self.gpu = gpu
        self.power = power
        self.space = Space(kernel, gpu.sm, gpu.limits, dtype, layout)
        codes = self.space.codes
        usable = np.ones(len(codes.keys), dtype=bool)
        self._launches: list[_Launch] = []
        self.unprofiled = 0
        for index in range(len(kernel.launches)):
            if (table := profiles.get(index)) is None:
                raise KernrecError(
                    f"no database holds profiles of {kernel.name} {kernel.hash} for {gpu.arch}"
                    " (tools/build_database.py makes them)"
                )
            at = {key: row for row, key in enumerate(table.code_keys)}
            found = np.array([at.get(key, -1) for key in codes.keys], dtype=np.int64)
            if index == 0:
                self.unprofiled = int((found < 0).sum())
            usable &= (found < 0) | (table.spill_bytes[found] == 0)
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
                )
            )
        self._usable = usable[codes.index]
        self._memory_clk = machine(gpu).dram_latency_clk
        self._scratch = frozenset(w.name for w in kernel.workspaces)
        self._resident: dict[int, tuple[Array, Array]] = {}
        self._quick_rates: dict[int, list[tuple[Array, Array, Array]]] = {}

    def __len__(self) -> int:
        return len(self.space)

    def rows(self, at: SpaceAt) -> Array:
        """Row numbers of the configs that can run the problem, and of whose every launch there is a profile."""
        can = at.valid & self._usable & (self._residency(at, 0)[0] > 0)
        for launch, spec in zip(self._launches, self.kernel.launches, strict=True):
            if launch.incomplete:
                can &= (launch.code >= 0) | (False if spec.when is None else np.logical_not(at.column(spec.when)))
        return np.flatnonzero(can)

    def shortlist(self, at: SpaceAt, rows: Array) -> Array:
        """At most `SHORTLIST` of `rows`: those that look fastest, and those that look most frugal.

        Quick measures: rounds of blocks times the longer of work and latency, where of a block's pipes only the busiest
        counts; and the joules of the core. Of a second pass only that it is launched counts, and DRAM not at all.
        """
        if len(rows) <= SHORTLIST:
            return rows
        clocks, joules = np.zeros(len(rows)), np.zeros(len(rows))
        for index, (launch, spec) in enumerate(zip(self._launches, self.kernel.launches, strict=True)):
            quick: Array | float = LAUNCH_S * self.gpu.boost_clock_hz + _SECOND_PASS_CLK * (index > 0)
            if spec.entry == self.kernel.launches[0].entry:
                blocks = at.column(spec.blocks, rows)
                (work, alone, dynamic), *loops = ([rate.take(rows) for rate in term] for term in self._quick(at, index))
                dynamic *= blocks
                trips: Array | float = 0.0
                for (work_trip, alone_trip, dynamic_trip), loop in zip(loops, launch.loops, strict=True):
                    depth = at.column(spec.depth[loop], rows)
                    trips = trips + depth
                    work += work_trip * depth
                    alone += alone_trip * depth
                    dynamic += dynamic_trip * at.column(spec.trips[loop], rows)
                waits = trips * (self._memory_clk / np.maximum(at.column(spec.prefetch, rows), 1.0))
                per_sm = np.ceil(blocks / self.gpu.sms)
                rounds = np.ceil(per_sm / self._residency(at, index)[0].take(rows))
                quick = quick + np.maximum(per_sm * work, rounds * (np.maximum(alone, waits) + self._memory_clk))
                joules += dynamic if spec.when is None else dynamic * at.column(spec.when, rows)
            clocks += quick if spec.when is None else quick * at.column(spec.when, rows)
        joules += clocks * (self.power.static_w / self.gpu.boost_clock_hz)
        promising = np.zeros(len(rows), dtype=bool)
        for cost in (clocks, joules):
            promising[np.argpartition(cost, SHORTLIST // 2)[: SHORTLIST // 2]] = True
        return rows[promising]

    def _quick(self, at: SpaceAt, index: int) -> list[tuple[Array, Array, Array]]:
        """For each term of a launch, of every row: clocks of the busiest pipe, clocks of a block alone, joules."""
        spec, launch = self.kernel.launches[index], self._launches[index]
        if index not in self._quick_rates or not self.space.fixed(spec.threads):
            warps = np.ceil(np.asarray(at.column(spec.threads)) / 32.0)
            self._quick_rates[index] = [
                (
                    rates[: len(PIPES)].max(axis=0).take(launch.code),
                    alone_clk(rates, warps if warps.ndim else float(warps), launch.code),
                    rates[CORE_J].take(launch.code),
                )
                for rates in launch.demand.rates
            ]
        return self._quick_rates[index]

    def predict(self, problem: Problem, at: SpaceAt, rows: Array) -> Prediction:
        """The prior's time and energy of the configs `rows` on a problem."""
        count = len(rows)
        core_s, dram_s, fixed_s = np.zeros(count), np.zeros(count), np.zeros(count)
        core_j, dram_j = np.zeros(count), np.zeros(count)
        tensors: dict[str, Array | float] = {name: float(t.bytes) for name, t in problem.tensors.items()}
        everything = np.arange(count)
        launches = []
        for index, launch in enumerate(self._launches):
            spec = self.kernel.launches[index]
            performed, subset = everything, rows
            if spec.when is not None:
                when = np.broadcast_to(np.asarray(at.column(spec.when, rows), dtype=bool), (count,))
                performed = np.flatnonzero(when)
                subset = rows[performed]
                if not len(performed):
                    continue
            sizes = tensors | {
                w.name: np.multiply(at.column(w.elements, subset), float(WORKSPACE_BYTES[w.dtype]))
                for w in self.kernel.workspaces
                if w.name in spec.reads or w.name in spec.writes
            }
            walk = self._walk(index, subset, at, sizes)
            times = launch_time(self.gpu, launch.demand, launch.code[subset], walk)
            core_s[performed] += times.core_s
            dram_s[performed] += times.dram_s
            fixed_s[performed] += LAUNCH_S
            core_j[performed] += times.core_j
            dram_j[performed] += walk.dram_bytes * self.power.event_j("dram.bytes")
            launches.append((times, performed))
        return Prediction(rows, core_s, dram_s, fixed_s, core_j, dram_j, tuple(launches))

    def occupancy(self, at: SpaceAt, row: int) -> float:
        """Resident warps over the most an SM holds, of the first launch of one config."""
        return float(self._residency(at, 0)[1][row])

    def occupancy_choice(self, at: SpaceAt, rows: Array) -> int:
        """The row, of `rows`, that the occupancy heuristic picks.

        The heuristic is that of `cudaOccupancyMaxPotentialBlockSize`: the most resident warps, of equals the largest
        block; of equals the first config in canonical order, for it does not look further.
        """
        fraction = self._residency(at, 0)[1]
        threads = np.broadcast_to(at.column(self.kernel.launches[0].threads), fraction.shape)
        score = fraction[rows] * 4096.0 + threads[rows] / 1024.0
        return int(rows[score.argmax()])

    def _walk(self, index: int, rows: Array, at: SpaceAt, tensor_bytes: Mapping[str, Array | float]) -> Walk:
        spec, launch = self.kernel.launches[index], self._launches[index]

        def column(expression: Expression) -> Array:
            """One value for each row, also where it is the same for all."""
            value = at.column(expression, rows)
            return value if isinstance(value, np.ndarray) else np.full(len(rows), value)

        resident = self._residency(at, index)[0].take(rows)
        blocks = column(spec.blocks)
        moved = dram_bytes(
            [(axis, at.column(extent, rows)) for axis, extent in spec.order],
            launch.reads,
            launch.writes,
            tensor_bytes,
            self._scratch,
            blocks,
            resident * float(self.gpu.sms),
            float(self.gpu.l2_bytes),
        )
        return Walk(
            terms=(blocks, *(column(spec.trips[loop]) for loop in launch.loops)),
            longest=(1.0, *(column(spec.depth[loop]) for loop in launch.loops)),
            concurrent=resident,
            warps=np.ceil(column(spec.threads) / 32.0),
            prefetch=column(spec.prefetch),
            dram_bytes=moved + np.zeros(len(rows)),
        )

    def _residency(self, at: SpaceAt, index: int) -> tuple[Array, Array]:
        """(blocks per SM, occupancy) of a launch for every row of the space; 0 where it cannot be launched."""
        spec, launch = self.kernel.launches[index], self._launches[index]
        fixed = self.space.fixed(spec.threads) and self.space.fixed(spec.shared)
        if fixed and index in self._resident:
            return self._resident[index]
        held = occupancy(
            self.gpu.limits,
            np.broadcast_to(at.column(spec.threads), len(self.space)),
            launch.registers[launch.code],
            launch.static_smem[launch.code] + at.column(spec.shared),
        )
        self._resident[index] = held.blocks.astype(np.float64), held.fraction
        return self._resident[index]


@dataclass(frozen=True)
class _Launch:
    """One launch of all codes: code: row of the space -> row of the profile table (-1: not profiled)."""

    demand: Demand
    code: Array
    incomplete: bool
    registers: Array
    static_smem: Array
    loops: tuple[str, ...]
    reads: Mapping[str, frozenset[str]]
    writes: Mapping[str, frozenset[str]]
