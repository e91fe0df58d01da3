"""Estimate quick costs, which select configs of a large space for a full estimate.

The quick time is the number of rounds of blocks times the longer of work and latency. Only the busiest pipe of a block
counts. The quick energy is the core's. A second pass counts only its launch. DRAM is ignored.
"""

import numpy as np

from kernrec.kernel.many_problems import OnProblems
from kernrec.model.prior.constants import LAUNCH_S
from kernrec.model.prior.microarchitecture import microarchitecture
from kernrec.recommender.estimate.launch_table import LaunchGeometry
from kernrec.recommender.estimate.static_table import Array, StaticTable

SHORTLIST = 512
"""Maximum number of configs estimated in full; of more, the most promising are selected."""

_SECOND_PASS_CLK = 2500.0  # blocks with little work: start, load once, store


def quick_costs(table: StaticTable, on_problem: OnProblems, rows: Array) -> tuple[Array, Array]:
    """Return the clocks and joules that select configs for the shortlist."""
    gpu, launches, programs = table.gpu, table.kernel.launches, table.programs(on_problem)
    clocks, joules = np.zeros(len(rows)), np.zeros(len(rows))
    for index, spec in enumerate(launches):
        geometry = table.geometry(on_problem, index)
        positions = geometry.performing(on_problem.configs(rows))
        start_clk = LAUNCH_S * gpu.boost_clock_hz + _SECOND_PASS_CLK * (index > 0)
        if spec.entry != launches[0].entry:
            clocks[positions] += start_clk
            continue
        own = rows if len(positions) == len(rows) else rows.take(positions)
        if programs is None:
            quick_clk, quick_j = _by_columns(table, on_problem, index, own, geometry)
            clocks[positions] += start_clk
            clocks[positions] += quick_clk
            joules[positions] += quick_j
            continue
        plan, configs = programs[index].plan, on_problem.configs(own)
        for alone, first, last in on_problem.parts(own):
            made = alone.execution.in_engine, configs, geometry.columns, geometry.quick  # type: ignore[union-attr]
            plan.add_quick(*made, start_clk, first, last, positions, clocks, joules)
    slower = table.calibration.core_time if table.calibration else 1.0
    joules += clocks * (slower * table.power.static_w / gpu.boost_clock_hz)
    return clocks, joules


def _by_columns(
    table: StaticTable, on_problem: OnProblems, index: int, rows: Array, geometry: LaunchGeometry
) -> tuple[Array, Array]:
    """Return clocks and core joules of one launch of these rows, from its expressions one by one."""
    launch = table.launches[index]
    memory_clk = microarchitecture(table.gpu).dram_latency_clk
    blocks, configs = table.blocks(on_problem, index, rows), on_problem.configs(rows)
    (work, alone, dynamic), *loops = (rates.take(configs, axis=1) for rates in geometry.quick)
    dynamic *= blocks
    trips: Array | float = 0.0
    for (work_trip, alone_trip, dynamic_trip), loop in zip(loops, launch.loops, strict=True):
        total, depth = table.trips(on_problem, index, loop, rows, blocks)
        trips = trips + depth
        work += work_trip * depth
        alone += alone_trip * depth
        dynamic += dynamic_trip * total
    waits = trips * (memory_clk / np.maximum(geometry.prefetch.take(configs), 1.0))
    per_sm = np.ceil(blocks / table.gpu.sms)
    rounds = np.ceil(per_sm / geometry.resident.take(configs))
    return np.maximum(per_sm * work, rounds * (np.maximum(alone, waits) + memory_clk)), dynamic
