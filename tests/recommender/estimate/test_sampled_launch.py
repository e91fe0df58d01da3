"""Atomic operations of sampled launches: where they meet in L2."""

import numpy as np
import pytest

from kernrec.recommender.estimate.sampled_launch import SampledLaunch
from kernrec.store import ProfileTable

BLOCKS = 2.0**21
TURN_S = 0.544e-9
"""Of one address: the anchor textbook_rtx3060_rtx3070ti.csv."""


def serial_clk(**metrics: float) -> float:
    """Clocks of L2 for the atomic operations of all blocks."""
    nothing, names = np.zeros(1), {name.replace("__", "."): value for name, value in metrics.items()}
    counts = np.array([[[value] for value in names.values()]])
    table = ProfileTable(0, "k", ("v",), nothing, nothing, nothing, nothing, tuple(names), ("block",), counts)
    return float(SampledLaunch(table, table, *[nothing] * 5).serial_clk(np.zeros(1, int), np.full(1, BLOCKS))[0])


def test_blocks_that_add_up_512_bins_each_do_47_g_additions_a_second() -> None:
    """As every card from an RTX 3060 to an RTX 3080 did, with a block of a warp for each 32 elements."""
    bins = {"atomic__own": 1 / 64, "atomic__meet": 1 / 64, "atomic__own__512": 1 / 4, "atomic__meet__512": 1 / 4}
    seconds = serial_clk(global__counts__atomic_turns=64.0, **bins) * TURN_S
    assert 512 * BLOCKS / seconds == pytest.approx(47e9, rel=0.03)


def test_additions_to_one_address_take_a_turn_each() -> None:
    everywhere = {"atomic__own": 1.0, "atomic__meet": 1.0, "atomic__own__512": 1.0, "atomic__meet__512": 1.0}
    assert serial_clk(global__counts__atomic_turns=32.0, **everywhere) == 32 * BLOCKS


def test_profiles_that_say_nothing_of_512_bytes_answer_as_before() -> None:
    assert serial_clk(global__counts__atomic_turns=64.0, atomic__own=1 / 64, atomic__meet=1 / 64) == BLOCKS
