"""Test clusters, whose blocks run together, access each other's shared memory and wait for each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.ptx import EmulationError, KernelLaunch, emulate
from kernrec.ptx.state.launch_layout import Clusters
from tests.helpers.paths import beside
from tests.helpers.ptx_text import cuda

RING = beside(__file__, "ring.cu")


@pytest.mark.parametrize("fixed", [True, False])
def test_blocks_of_a_cluster_share_their_shared_memory(fixed):
    out, mine = np.zeros((4, 6, 32), np.int32), np.zeros((4, 6, 32), np.int32)
    program = cuda(RING.replace("CLUSTER", "__cluster_dims__(3, 2, 1)" if fixed else ""), "sm_90")
    launch = KernelLaunch("k", (6, 4), (32,), ["o", "m"], {"o": out, "m": mine}, cluster=() if fixed else (3, 2))
    emulate(program, launch)
    y, x = np.indices((4, 6))
    rank = y % 2 * 3 + x % 3
    lane = np.arange(32)
    np.testing.assert_array_equal(out, ((rank + 1) % 6 * 100)[:, :, None] + 31 - lane)
    place = 100000 * (x % 3 + 10 * (y % 2))
    np.testing.assert_array_equal(mine, (rank * 100 + place)[:, :, None] + lane + np.where(lane == 0, 32000, 0))


@given(st.tuples(*[st.integers(1, 3)] * 3), st.tuples(*[st.integers(1, 2)] * 3))
def test_blocks_and_clusters_have_ids(clusters, cluster):
    x, y, z = (a * b for a, b in zip(clusters, cluster, strict=True))
    shape, blocks = Clusters((x, y, z), cluster), range(x * y * z)
    ordered = shape.ordered(blocks)
    assert sorted(ordered) == list(blocks)
    for first in range(0, len(ordered), shape.size):
        together = ordered[first : first + shape.size]
        assert shape.complete(together[-1:]) == together
        corners = {
            tuple(c // e for c, e in zip((b % x, b // x % y, b // (x * y)), cluster, strict=True)) for b in together
        }
        assert len(corners) == 1


def test_block_that_misses_its_cluster_barrier_is_reported():
    waits = 'if (rank) sync(); else asm volatile("bar.sync 1, 64;");'
    source = RING.replace("CLUSTER", "__cluster_dims__(2, 1, 1)").replace("sync();\n    asm", waits + "\n    asm", 1)
    buffers = {"o": np.zeros(64, np.int32), "m": np.zeros(64, np.int32)}
    with pytest.raises(EmulationError, match="waits at the barrier of its cluster"):
        emulate(cuda(source, "sm_90"), KernelLaunch("k", (2,), (32,), ["o", "m"], buffers))


def test_address_outside_the_cluster_is_an_error():
    source = beside(__file__, "outside_the_cluster.cu")
    with pytest.raises(EmulationError, match="of shared memory"):
        emulate(cuda(source, "sm_90"), KernelLaunch("k", (2,), (32,), ["o"], {"o": np.zeros(1, np.int32)}))


def test_multicast_copy_reaches_the_blocks_of_its_mask():
    source = beside(__file__, "multicast.cu")
    x, out = np.arange(64, dtype=np.int32), np.zeros((2, 4, 32), np.int32)
    launch = KernelLaunch("k", (8,), (32,), ["x", "o"], {"x": x, "o": out})
    counts = emulate(cuda(source, "sm_90"), launch, check_races=True)
    for cluster in range(2):
        for rank in range(4):
            wanted = np.full(32, -1) if rank == 1 else x[cluster * 32 : cluster * 32 + 32]
            np.testing.assert_array_equal(out[cluster, rank], wanted)
    assert counts["global.x.read_bytes"] == 256  # once per cluster


@pytest.mark.parametrize(("store", "wanted"), [
    ("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32", lambda lane, rank: lane + 100 * rank),
    (
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32",
        lambda lane, rank: 7 + lane + 100 * rank,
    ),
])  # fmt: skip
def test_stores_counted_by_a_barrier_reach_another_block(store, wanted):
    source = beside(__file__, "counted_stores.cu")
    out = np.zeros((4, 32), np.int32)
    launch = KernelLaunch("k", (4,), (32,), ["o"], {"o": out})
    emulate(cuda(source.replace("STORE", store), "sm_90"), launch, check_races=True)
    np.testing.assert_array_equal(out, [wanted(np.arange(32), block % 2 ^ 1) for block in range(4)])
