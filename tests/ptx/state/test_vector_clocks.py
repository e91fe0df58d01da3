"""Snapshots of what warps know are put together without inventing knowledge."""

import numpy as np

from kernrec.ptx.state.vector_clocks import VectorClocks, merged


def test_a_snapshot_from_before_a_barrier_was_added_knows_nothing_of_its_copies() -> None:
    early, late = np.array([3, 1]), np.array([2, 2, 0])
    assert merged(early, late).tolist() == merged(late, early).tolist() == [3, 2, 0]


def test_who_passes_a_barrier_knows_what_those_knew_who_arrived_there_before_barriers_in_memory_were_added() -> None:
    clocks = VectorClocks(2)
    snapshot = clocks.snapshot(1)
    for place in range(40):  # more than there is room for at first
        clocks.column(8 * place)
    clocks.join(np.array([0]), [snapshot])
    assert clocks.seen[0, 1] == snapshot[1]
    assert not clocks.seen[0, 2:].any()
