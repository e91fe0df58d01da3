"""Test clusters, whose blocks access each other's shared memory, and threads that spin on a value."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.ptx import EmulationError, KernelLaunch, emulate, parse
from kernrec.ptx.analysis.spin_loops import spins
from kernrec.ptx.state.clusters import Clusters
from tests.helpers.ptx_text import cuda

RING = r"""
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#define SPECIAL(name) ([] { unsigned v; asm volatile("mov.u32 %0, %%" name ";" : "=r"(v)); return v; }())
extern "C" __global__ void CLUSTER k(int* out, int* mine) {
    __shared__ int s[32];
    unsigned rank = SPECIAL("cluster_ctarank"), blocks = SPECIAL("cluster_nctarank"), next;
    s[threadIdx.x] = rank * 100 + threadIdx.x;
    sync();
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(next) : "r"(at(s)), "r"((rank + 1) % blocks));
    int block = blockIdx.y * gridDim.x + blockIdx.x, value;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(next + 4 * (31 - threadIdx.x)));
    out[block * 32 + threadIdx.x] = value;
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], 1000;" :: "r"(next));
    sync();
    int place = SPECIAL("cluster_ctaid.x") + 10 * SPECIAL("cluster_ctaid.y");
    mine[block * 32 + threadIdx.x] = s[threadIdx.x] + 100000 * place;
}
"""


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
    source = r"""
    extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* out) {
        __shared__ int s[32];
        unsigned a = (unsigned)__cvta_generic_to_shared(s), b;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(b) : "r"(a), "r"(2));
        asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(b), "r"(1));
        out[0] = s[0];
    }
    """
    with pytest.raises(EmulationError, match="of shared memory"):
        emulate(cuda(source, "sm_90"), KernelLaunch("k", (2,), (32,), ["o"], {"o": np.zeros(1, np.int32)}))


def test_multicast_copy_reaches_the_blocks_of_its_mask():
    source = r"""
    __device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
    extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const int* x, int* out) {
        __shared__ __align__(16) int s[32];
        __shared__ unsigned long long bar;
        unsigned rank;
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        s[threadIdx.x] = -1;
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(&bar)));
            asm volatile("fence.mbarrier_init.release.cluster;");
            asm volatile("fence.proxy.async;");
            if (rank != 1) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" :: "r"(at(&bar)));
        }
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
        if (threadIdx.x == 0 && rank == 2)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                         " [%0], [%1], 128, [%2], %3;"
                         :: "r"(at(s)), "l"(x + blockIdx.x / 4 * 32), "r"(at(&bar)), "h"((short)13) : "memory");
        if (rank != 1)
            asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra W; }"
                         :: "r"(at(&bar)) : "memory");
        out[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
    }
    """
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
    source = r"""
    __device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
    extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* out) {
        __shared__ int s[32];
        __shared__ unsigned long long bar;
        unsigned rank, to, its;
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        s[threadIdx.x] = 7;
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(&bar)));
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" :: "r"(at(&bar)));
        }
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at(&s[threadIdx.x])), "r"(rank ^ 1));
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(its) : "r"(at(&bar)), "r"(rank ^ 1));
        asm volatile("STORE [%0], %1, [%2];" :: "r"(to), "r"(threadIdx.x + 100 * rank), "r"(its) : "memory");
        asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra W; }"
                     :: "r"(at(&bar)) : "memory");
        out[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
    }
    """
    out = np.zeros((4, 32), np.int32)
    launch = KernelLaunch("k", (4,), (32,), ["o"], {"o": out})
    emulate(cuda(source.replace("STORE", store), "sm_90"), launch, check_races=True)
    np.testing.assert_array_equal(out, [wanted(np.arange(32), block % 2 ^ 1) for block in range(4)])


RELAY = r"""
// Every block but the last waits for the one after it, takes its number, adds 1, and passes it on.
extern "C" __global__ void relay(volatile int* passed, int* out) {
    int mine = 1;
    if (blockIdx.x + 1 < gridDim.x) {
        int got;
        while ((got = passed[blockIdx.x + 1]) == 0);
        mine = got + 1;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0) passed[blockIdx.x] = mine;
}
"""


def relay(source: str, blocks: int) -> list[int]:
    buffers = {"passed": np.zeros(blocks, np.int32), "out": np.zeros(blocks * 32, np.int32)}
    launch = KernelLaunch("relay", (blocks,), (32,), ["passed", "out"], buffers)
    emulate(cuda(source), launch, budget=100_000)
    return buffers["out"][::32].tolist()


def test_concurrent_blocks_wait_for_each_other():
    assert relay(RELAY, 4) == [4, 3, 2, 1]


def test_endless_wait_is_a_deadlock():
    silent = RELAY.replace("if (threadIdx.x == 0) passed", "if (threadIdx.x == 99) passed")
    with pytest.raises(
        EmulationError, match=r"deadlock: block \(\d+, 0, 0\) thread \(0, 0, 0\) waits for what another"
    ):
        relay(silent, 4)


LOOPS = {
    "@p bra AGAIN": ("ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %p1, %r1, 0; @%p1 bra AGAIN;", True),
    "counts": (
        "ld.volatile.global.u32 %r1, [%rd1]; add.u32 %r2, %r2, 1; setp.ne.u32 %p1, %r2, %r1; @%p1 bra AGAIN;",
        False,
    ),
    "walks": ("ld.global.u32 %r1, [%rd1]; add.u64 %rd1, %rd1, 4; setp.eq.u32 %p1, %r1, 0; @%p1 bra AGAIN;", False),
    "takes a lock": ("atom.global.cas.b32 %r1, [%rd1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra AGAIN;", True),
    "takes numbers": ("atom.global.add.u32 %r1, [%rd1], 1; setp.lt.u32 %p1, %r1, 9; @%p1 bra AGAIN;", False),
    "stores": (
        "st.global.u32 [%rd1], 1; ld.volatile.global.u32 %r1, [%rd1+4]; setp.eq.u32 %p1, %r1, 0; @%p1 bra AGAIN;",
        False,
    ),
}


@pytest.mark.parametrize(("body", "waits"), LOOPS.values(), ids=LOOPS)
def test_only_a_loop_ended_by_other_blocks_is_a_wait(body, waits):
    module = parse(f"""
        .version 8.0 .target sm_80 .address_size 64
        .visible .entry k(.param .u64 p) {{
            .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %rd<2>;
            ld.param.u64 %rd1, [p];
            mov.u32 %r2, 0;
            AGAIN: {body}
            ret;
        }}""")
    assert [spins(block) for block in module.functions["k"].blocks] == [False, waits, False]
