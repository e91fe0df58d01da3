"""What the order and the addresses of requests show: sectors by warp, clocks of L1, turns of atomic operations."""

import numpy as np
import pytest

from kernrec.ptx.state.access_cost import AccessPattern
from kernrec.ptx.state.access_trace import MOST_ENTRIES, AccessTrace

LANES = np.arange(32)


def pattern(addresses: np.ndarray, lanes: np.ndarray | None = None) -> AccessPattern:
    return AccessPattern(addresses, lanes, 64 if lanes is not None else len(addresses))


@pytest.mark.parametrize(
    ("addresses", "base", "clk"),
    [
        (LANES * 4, 0, 1),  # a row
        (LANES * 4, 64, 1),  # of two lines
        (LANES * 0, 0, 1),
        (LANES * 4096, 0, 32),  # a column: one bank
        (LANES * 4100, 0, 8),  # a diagonal: 32 banks, but four tags a clock
        (LANES * 16, 0, 4),  # every fourth word
    ],
)
def test_l1_takes_the_busiest_bank_or_four_tags_a_clock(addresses: np.ndarray, base: int, clk: int) -> None:
    assert pattern(addresses).l1_passes(base, 4) == clk


def test_atomic_operations_on_one_element_take_turns_and_those_of_a_sector_go_together() -> None:
    assert pattern(LANES * 0).atomic_turns(0, 4) == 32
    assert pattern(LANES * 4).atomic_turns(0, 4) == 4
    assert pattern(LANES * 32).atomic_turns(0, 4) == 32
    assert pattern(LANES // 16 * 4).atomic_turns(0, 4) == 16
    assert pattern(LANES * 8).atomic_turns(0, 8) == 8


def test_a_trace_tells_blocks_warps_and_steps_apart() -> None:
    watched = AccessTrace([5])
    watched.start_batch([4, 5], warps=1, step=10)
    two_warps = pattern(np.concatenate([LANES * 4, LANES * 4 + 4096]))
    watched.record(12, two_warps, 1 << 20, True)
    watched.record(13, pattern(LANES[:8] * 4, LANES[:8] + 32), 1 << 21, False)
    (trace,) = watched.blocks().values()
    assert trace.step.tolist() == [2, 2, 2, 2, 3]
    assert trace.warp.tolist() == [0] * 5
    assert trace.sector.tolist() == [*range((1 << 15) + 128, (1 << 15) + 132), 1 << 16]
    assert trace.is_read.tolist() == [True] * 4 + [False]


def test_of_a_long_block_the_beginning_is_kept() -> None:
    watched = AccessTrace([0])
    watched.start_batch([0], warps=1, step=0)
    column = pattern(LANES * 4096)
    for step in range(MOST_ENTRIES // 32 + 100):
        watched.record(step, column, 4 * step, True)
    assert watched.full
    assert len(watched.blocks()[0].step) == MOST_ENTRIES
