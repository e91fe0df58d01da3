"""Test sampled launches: conflicts of atomics in L2, and the DRAM cost of short runs of bytes."""

import numpy as np
import pytest

from kernrec.recommender.estimate.sampled_launch import SampledLaunch, _with_local_memory
from kernrec.store import ProfileTable

BLOCKS = 2.0**21


TURN_S = 0.544e-9


def serial_clk(**metrics: float) -> float:
    """Return the L2 clocks for the atomic operations of all blocks."""
    nothing, names = np.zeros(1), {name.replace("__", "."): value for name, value in metrics.items()}
    counts = np.array([[[value] for value in names.values()]])
    table = ProfileTable(0, "k", ("v",), nothing, nothing, nothing, nothing, tuple(names), ("block",), counts)
    return float(SampledLaunch(table, table, *[nothing] * 6).serial_clk(np.zeros(1, int), np.full(1, BLOCKS))[0])


def slowdown(run: float, joined: float = 0.0) -> float:
    """Return the DRAM slowdown for reads in runs of `run` bytes, a share `joined` of which the next block continues."""
    nothing, names = np.zeros(1), ("touch.a.read", "run.read", "run.read.x")
    counts = np.array([[[1024.0], [run], [joined]]])
    table = ProfileTable(0, "k", ("v",), nothing, nothing, nothing, nothing, names, ("block",), counts)
    grid = [np.full(1, 4096.0), np.ones(1), np.ones(1)]
    launch = SampledLaunch(table, table, *[nothing] * 6)
    return float(launch.dram_slowdown(np.zeros(1, int), grid, np.full(1, 1024.0), 5e7)[0])


def test_short_contiguous_reads_slow_down_dram_as_on_a_recorded_h100():
    """The bounds come from recorded products that stream weights (8 x 129792 x 4096), relative to runs of 512 bytes."""
    assert 1.70 <= slowdown(64.0) <= 1.93
    assert 1.02 <= slowdown(128.0) <= 1.13
    assert slowdown(256.0) <= 1.02
    assert slowdown(512.0) == pytest.approx(1.0, abs=1e-3)


def test_short_reads_that_the_next_block_continues_cost_nothing():
    assert slowdown(64.0, joined=1.0) == pytest.approx(1.0, abs=1e-3)
    assert slowdown(64.0, joined=0.5) < slowdown(64.0)


def test_histograms_of_512_bins_do_47_billion_additions_per_second():
    """GPUs from the RTX 3060 to the RTX 3080 reached this rate with one block of a warp per 32 elements."""
    bins = {"atomic__own": 1 / 64, "atomic__meet": 1 / 64, "atomic__own__512": 1 / 4, "atomic__meet__512": 1 / 4}
    seconds = serial_clk(global__counts__atomic_turns=64.0, **bins) * TURN_S
    assert 512 * BLOCKS / seconds == pytest.approx(47e9, rel=0.03)


def test_additions_to_one_address_are_serialized():
    everywhere = {"atomic__own": 1.0, "atomic__meet": 1.0, "atomic__own__512": 1.0, "atomic__meet__512": 1.0}
    assert serial_clk(global__counts__atomic_turns=32.0, **everywhere) == 32 * BLOCKS


def local_table(stack_bytes: int, spill_bytes: int = 0) -> ProfileTable:
    """Return the profile of a block of 128 threads with 512 sectors of local stores and 256 of local loads."""
    names = ("issue", "local.read_sectors", "local.write_sectors")
    counts = np.array([[[1000.0], [256.0], [512.0]]])
    sizes = [np.full(1, size) for size in (32, spill_bytes, stack_bytes, 0)]
    table = ProfileTable(0, "k", ("v",), *sizes, names, ("block",), counts)
    return _with_local_memory(table, np.full(1, 128), np.full(1, 4), np.full(1, 1e5))


def local_memory(stack_bytes: int, spill_bytes: int = 0) -> dict[str, float]:
    made = local_table(stack_bytes, spill_bytes)
    return dict(zip(made.metrics, made.counts[0, :, 0].tolist(), strict=True))


def test_stores_to_local_memory_reach_l2_and_loads_hit_in_l1():
    counts = local_memory(stack_bytes=32)
    assert counts["local.l2_sectors"] == 512.0
    assert counts["l1.wavefronts"] == (512.0 + 256.0) / 4
    assert local_memory(stack_bytes=1 << 20)["local.l2_sectors"] == pytest.approx(768.0, rel=1e-3)


def test_half_of_the_spilled_bytes_are_stores():
    counts = local_memory(stack_bytes=0, spill_bytes=64)
    assert counts["local.l2_sectors"] == 64.0 * 4 / 2


def test_arrays_in_registers_access_no_local_memory():
    assert "local.l2_sectors" not in local_memory(stack_bytes=0)


def test_stacks_beyond_l2_move_through_dram():
    def moved(l2_bytes: float) -> float:
        table, nothing = local_table(stack_bytes=1024), np.zeros(1)
        launch = SampledLaunch(table, table, *[nothing] * 6)
        return float(launch.local_dram_bytes(np.zeros(1, int), np.full(1, 100.0), l2_bytes)[0])

    stacks = 1024 * 128 * 100
    assert moved(2.0 * stacks) == 0.0
    assert moved(0.25 * stacks) == pytest.approx(0.75 * 32.0 * local_memory(1024)["local.l2_sectors"])
