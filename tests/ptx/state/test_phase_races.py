"""Test that warps, copies and blocks must be ordered: each missing barrier or fence is an error, and nothing else."""

import numpy as np
import pytest

from kernrec.ptx import Counts, EmulationError, KernelLaunch, emulate
from tests.helpers.ptx_text import cuda, run

CHUNKS, WORDS = 7, 64
HELPERS = r"""
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void start(void* bar, int n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(bar)), "r"(n));
}
__device__ void arrive(void* bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(bar)) : "memory");
}
__device__ void expect(void* bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at(bar)), "r"(bytes) : "memory");
}
__device__ bool test(void* bar, int parity) {
    int done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(at(bar)), "r"(parity) : "memory");
    return done;
}
__device__ void wait(void* bar, int parity) { while (!test(bar, parity)); }
__device__ void copy(void* to, const void* from, int bytes, void* bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(at(to)), "l"(from), "r"(bytes), "r"(at(bar)) : "memory");
}
"""
PIPELINE = (
    HELPERS
    + r"""
// Warp 0 loads chunks into two buffers in turn; warps 1 and 2 double them into another two, which thread 32 stores.
extern "C" __global__ void k(const int* x, int* out) {
    __shared__ __align__(128) int in[2][64], doubled[2][64];
    __shared__ unsigned long long full[2], empty[2];
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; i++) { start(&full[i], 1); start(&empty[i], 64); }
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0)
            for (int c = 0; c < 7; c++) {
                int s = c & 1, phase = c / 2 & 1;
                wait(&empty[s], phase ^ 1);
                expect(&full[s], 256);
                copy(in[s], x + c * 64, 128, &full[s]);
                copy(in[s] + 32, x + c * 64 + 32, 128, &full[s]);
            }
        return;
    }
    int t = threadIdx.x - 32;
    for (int c = 0; c < 7; c++) {
        int s = c & 1, phase = c / 2 & 1;
        wait(&full[s], phase);
        int value = in[s][63 - t];
        arrive(&empty[s]);
        if (t == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        asm volatile("bar.sync 1, 64;" ::: "memory");
        doubled[s][t] = 2 * value;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync 2, 64;" ::: "memory");
        if (t == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;"
                         :: "l"(out + c * 64), "r"(at(doubled[s])) : "memory");
            asm volatile("cp.async.bulk.commit_group;");
        }
    }
    if (t == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
"""
)

RELEASE = """        int value = in[s][63 - t];
        arrive(&empty[s]);"""


def pipeline(old: str = "", new: str = "", check_races: bool = True) -> tuple[np.ndarray, np.ndarray, Counts]:
    """Run the pipeline with a part of it replaced; return the expected result, the result and the counts."""
    assert old in PIPELINE
    x = np.arange(CHUNKS * WORDS, dtype=np.int32).reshape(CHUNKS, WORDS)
    out = np.zeros_like(x)
    program = cuda(PIPELINE.replace(old, new, 1), "sm_90a")
    counts = emulate(program, KernelLaunch("k", (1,), (96,), ["x", "o"], {"x": x, "o": out}), check_races=check_races)
    return 2 * x[:, ::-1], out, counts


def test_correct_pipeline_is_accepted_and_counted():
    for check_races in (True, False):
        wanted, out, counts = pipeline(check_races=check_races)
        np.testing.assert_array_equal(out, wanted)
        assert counts["mbarrier.waits"] == CHUNKS * 3  # waits of the producer and of two consumer warps
        assert counts["bulk.shared_write_bytes"] == counts["bulk.shared_read_bytes"] == CHUNKS * WORDS * 4
        assert counts["global.x.read_sectors"] == CHUNKS * WORDS * 4 // 32


def test_broken_pipeline_is_an_error(refuses):
    refuses(lambda old, new: pipeline(old, new), [
        ("__syncthreads();", ""), ("wait(&full[s], phase);", ""), ("wait(&full[s], phase);", "test(&full[s], phase);"),
        ("wait(&full[s], phase);", "wait(&full[s], phase ^ 1);"), ("wait(&empty[s], phase ^ 1);", ""),
        (RELEASE, "\n".join(reversed(RELEASE.split("\n")))), ("start(&empty[i], 64);", "start(&empty[i], 65);"),
        ("arrive(&empty[s]);", "if (t < 63) arrive(&empty[s]);"), ("expect(&full[s], 256);", "expect(&full[s], 128);"),
        ("expect(&full[s], 256);", "expect(&full[s], 512);"), ("expect(&full[s], 256);", "arrive(&full[s]);"),
        ('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', ""),
        ('asm volatile("bar.sync 2, 64;" ::: "memory");', ""), ("wait_group.read 1", "wait_group.read 2"),
        ('asm volatile("cp.async.bulk.commit_group;");', ""),
        ('asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");', ";"),
    ])  # fmt: skip


SOME = (
    HELPERS
    + r"""
// Three warps; warp 2 writes what warp 0 reads.
extern "C" __global__ void k(int* out) {
    __shared__ int held[32];
    __shared__ unsigned long long unused;
    if (threadIdx.x == 0) start(&unused, 1);
    __syncthreads();
    if (threadIdx.x >= 64) {
        held[threadIdx.x - 64] = threadIdx.x;
        WRITER
    } else if (threadIdx.x < 32) {
        READER
        out[threadIdx.x] = held[31 - threadIdx.x];
    } else {
        OTHER
    }
}
"""
)


@pytest.mark.parametrize(("writer", "reader", "other", "right"), [
    ("bar.arrive 1, 64;", "bar.sync 1, 64;", "", True), ("bar.sync 1, 64;", "bar.sync 1, 64;", "", True),
    ("bar.sync 1, 96;", "bar.sync 1, 96;", "bar.arrive 1, 96;", True),
    ("bar.arrive 1, 64;", "bar.sync 2, 64;", "bar.sync 1, 64; bar.arrive 2, 64;", True),
    ("", "bar.sync 1, 64;", "bar.sync 1, 64;", False), ("", "bar.sync 1, 64;", "bar.arrive 1, 64;", False),
    ("bar.arrive 1, 64;", "bar.sync 2, 64;", "bar.arrive 2, 64; bar.sync 1, 64;", False),
])  # fmt: skip
def test_partial_barrier_orders_only_its_waiting_warps(writer, reader, other, right):
    source = SOME
    for name, text in (("WRITER", writer), ("READER", reader), ("OTHER", other)):
        source = source.replace(name, f'asm volatile("{text}" ::: "memory");', 1)
    out = np.zeros(32, np.int32)
    launch = KernelLaunch("k", (1,), (96,), ["o"], {"o": out})
    if right:
        emulate(cuda(source, "sm_90a"), launch, check_races=True)
        np.testing.assert_array_equal(out, 64 + np.arange(32)[::-1])
    else:
        with pytest.raises(EmulationError, match=r"race: warp . .* which warp . (wrote|read)"):
            emulate(cuda(source, "sm_90a"), launch, check_races=True)


PRODUCTS = (
    HELPERS
    + r"""
// Thread 128 loads one tile after the other into the same place; a warpgroup multiplies it.
extern "C" __global__ void k(const char* x, float* out) {
    __shared__ __align__(128) char tile[2304];
    __shared__ unsigned long long full, empty;
    if (threadIdx.x == 0) { start(&full, 1); start(&empty, 128); }
    __syncthreads();
    if (threadIdx.x >= 128) {
        for (int c = 0; threadIdx.x == 128 && c < 3; c++) {
            wait(&empty, c & 1 ^ 1);
            expect(&full, 2304);
            copy(tile, x, 2304, &full);
        }
        return;
    }
    float sum[4];
    asm volatile(".reg .f32 d<4>;");  // not copied by the compiler while a product is under way
    unsigned long long a = 16ull << 32 | 8 << 16 | at(tile) >> 4, b = 16ull << 32 | 8 << 16 | at(tile + 2048) >> 4;
    for (int c = 0; c < 3; c++) {
        wait(&full, c & 1);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {d0, d1, d2, d3}, %0, %1, p, 1, 1, 0, 0; }"
                     :: "l"(a), "l"(b), "r"(c) : "memory");
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        arrive(&empty);
    }
    asm volatile("mov.f32 %0, d0;\nmov.f32 %1, d1;\nmov.f32 %2, d2;\nmov.f32 %3, d3;"
                 : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3]));
    out[threadIdx.x] = sum[0] + sum[1] + sum[2] + sum[3];
}
"""
)


def products(old: str = "", new: str = "") -> np.ndarray:
    """Run the products on a tile of ones, with a part of the kernel replaced."""
    assert old in PRODUCTS
    x, out = np.ones(1152, np.float16), np.zeros(128, np.float32)
    program = cuda(PRODUCTS.replace(old, new, 1), "sm_90a")
    emulate(program, KernelLaunch("k", (1,), (160,), ["x", "o"], {"x": x, "o": out}), check_races=True)
    return out


def test_tile_is_free_only_after_its_product_was_awaited():
    """Nothing runs between the wait and the arrival, so that only the recorded ordering can reveal the race."""
    np.testing.assert_array_equal(products(), np.full(128, 3 * 4 * 16))
    wait = '        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");\n'
    arrival = "        arrive(&empty);\n"
    with pytest.raises(EmulationError, match=r"cp.async.bulk.*: race: warp 4 .* writes byte 0 .* which warp . read"):
        products(wait + arrival, arrival + wait)


PAIR = (
    HELPERS
    + r"""
// Block 1 arrives at a barrier of block 0, which does not wait for that.
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const int* x) {
    __shared__ __align__(128) int s[32];
    __shared__ unsigned long long told, full;
    unsigned rank, there;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) { start(&told, 1); start(&full, 1); }
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (rank == 1 && threadIdx.x == 0) {
        expect(&full, 128);
        copy(s, x, 128, &full);
        wait(&full, 0);
        asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(there) : "r"(at(&told)));
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
    }
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
"""
)


def test_block_stays_until_its_cluster_has_finished_with_its_memory():
    def run(*removed: str) -> None:
        source = PAIR
        for part in removed:
            assert part in source
            source = source.replace(part, "")
        arguments = ["x"], {"x": np.zeros(32, np.int32)}
        emulate(cuda(source, "sm_90"), KernelLaunch("k", (2,), (32,), *arguments), check_races=True)

    last = 'asm volatile("barrier.cluster.arrive;\\nbarrier.cluster.wait;" ::: "memory");'
    run()
    with pytest.raises(EmulationError, match=r"mbarrier.arrive.*of the cluster's block 0, which is gone: that block"):
        run(last)
    asleep = ("expect(&full, 128);", "copy(s, x, 128, &full);", "wait(&full, 0);")
    with pytest.raises(EmulationError, match="block number 0 ends while warp 0 of block number 1 may still use byte"):
        run(last, *asleep)


HEAD = (
    ".shared .align 4 .b8 s[512]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r5, 508; sub.u32 %r3, %r5, %r2; "
)
WRITE, READ_OTHER, READ_OWN = "st.shared.u32 [%r2], %r1; ", "ld.shared.u32 %r4, [%r3]; ", "ld.shared.u32 %r4, [%r2]; "
BARRIER = "bar.sync 0; "


def check(body: str) -> None:
    run(HEAD + body, block=(128,), grid=(2,), check_races=True)


@pytest.mark.parametrize("body", [
    WRITE + BARRIER + READ_OTHER, WRITE + READ_OWN + BARRIER + READ_OTHER + READ_OWN + BARRIER + WRITE,
    READ_OWN + READ_OTHER + BARRIER + WRITE + WRITE,
])  # fmt: skip
def test_ordered_accesses_pass(body):
    check(body)


@pytest.mark.parametrize(("body", "message"), [
    (WRITE + READ_OTHER, r"warp 0 of block number 0 reads byte 508 of shared memory, which warp 3 wrote"),
    (READ_OTHER + WRITE, r"writes byte 0 of shared memory, which warp 3 read"),
    (WRITE + BARRIER + READ_OTHER + WRITE, r"which warp 3 read"),
    ("mov.u32 %r2, 16; " + WRITE, r"byte 16 of shared memory, which warp \d wrote"),
    ("mov.u32 %r2, 16; " + READ_OWN + WRITE, r"which several warps read"),
])  # fmt: skip
def test_unordered_accesses_are_named(body, message):
    with pytest.raises(EmulationError, match=message):
        check(body)
    run(HEAD + body, block=(128,))  # the kernel runs without the check


def test_barrier_of_one_block_does_not_order_another():
    body = """setp.eq.u32 %p1, %ctaid.x, 0; @%p1 bra ZERO; st.shared.u32 [%r2], %r1; ld.shared.u32 %r4, [%r3];
      bra.uni END;
      ZERO: st.shared.u32 [%r2], %r1; bar.sync 0; ld.shared.u32 %r4, [%r3]; END:"""
    with pytest.raises(EmulationError, match="block number 1"):
        check(body)


HANDS_ON = r"""
__device__ void release(unsigned* flag) {
    asm volatile("st.release.gpu.global.u32 [%0], 1;" :: "l"(flag) : "memory");
}
__device__ unsigned look(unsigned* flag) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
// Each block leaves squares for the next one; warp w takes what thread 63 - t of the block before stored.
extern "C" __global__ void k(int* left, unsigned* flags, int* out) {
    unsigned t = threadIdx.x, block = blockIdx.x;
    left[block * 64 + t] = (block * 64 + t) * (block * 64 + t);
    __syncthreads();
    if (t == 0) release(flags + block);
    if (block) {
        while (look(flags + block - 1) == 0);
        out[block * 64 + t] = left[(block - 1) * 64 + 63 - t];
    }
}
"""
BREAKS = {
    "relaxed store": ("st.release.gpu", "st.relaxed.gpu", "race: warp . of block number . reads byte .* of left"),
    "relaxed look": ("ld.acquire.gpu", "ld.relaxed.gpu", "race: warp . of block number . reads"),
    "no wait": ("while (look(flags + block - 1) == 0);", "look(flags + block - 1);", "race"),
    "flag before the data": ("__syncthreads();", "", "race: .* which warp 1 of block number . wrote"),
    "flag of another block": ("look(flags + block - 1)", "look(flags)", "race"),
    "another's data": ("left[block * 64 + t] =", "left[t] =", "race"),
}


def hand_on(source: str, blocks: int) -> list[int]:
    buffers = {"left": np.zeros(blocks * 64, np.int32), "flags": np.zeros(blocks, np.uint32)}
    buffers["out"] = np.zeros(blocks * 64, np.int32)
    launch = KernelLaunch("k", (blocks,), (64,), ["left", "flags", "out"], buffers)
    emulate(cuda(source), launch, budget=1_000_000, check_races=True)
    return buffers["out"][64:].tolist()


@pytest.mark.parametrize("blocks", [3, 40])
def test_release_and_acquire_hand_over_data(blocks):
    """40 blocks are too many to run all at the same time."""
    taken = [(block - 1) * 64 + 63 - t for block in range(1, blocks) for t in range(64)]
    assert hand_on(HANDS_ON, blocks) == [number**2 for number in taken]


@pytest.mark.parametrize(("old", "new", "message"), BREAKS.values(), ids=BREAKS)
def test_access_without_ordering_is_a_race(old, new, message):
    assert HANDS_ON.count(old) == 1
    with pytest.raises(EmulationError, match=message):
        hand_on(HANDS_ON.replace(old, new), 3)


@pytest.mark.parametrize("old", ["st.release.gpu", "ld.acquire.gpu"])
def test_race_with_an_earlier_block_is_detected(old):
    with pytest.raises(EmulationError, match="race"):
        hand_on(HANDS_ON.replace(old, old.replace("release", "relaxed").replace("acquire", "relaxed")), 40)


def test_ordering_is_transitive():
    """Every block reads data of the first block, but acquires only from the block before it."""
    first = HANDS_ON.replace("left[(block - 1) * 64 + 63 - t]", "left[63 - t]")
    assert "__syncthreads();\n    if (t == 0) release" in first
    after = (
        first.replace("    __syncthreads();\n    if (t == 0) release(flags + block);\n", "")
        .replace(
            "    if (block) {", "    if (block == 0) { __syncthreads(); if (t == 0) release(flags); }\n    if (block) {"
        )
        .replace("left[63 - t];", "left[63 - t]; __syncthreads(); if (t == 0) release(flags + block);")
    )
    assert hand_on(after, 20) == [(63 - t) ** 2 for _ in range(1, 20) for t in range(64)]


COUNTED = r"""
// The last block to arrive adds up what all left.
extern "C" __global__ void k(int* left, unsigned* flags, int* out) {
    __shared__ unsigned before;
    left[blockIdx.x * 64 + threadIdx.x] = blockIdx.x;
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(flags) : "memory");
    __syncthreads();
    if (before == gridDim.x - 1)
        for (int b = 0; b < gridDim.x; b++) out[64 + threadIdx.x] += left[b * 64 + threadIdx.x];
}
"""


@pytest.mark.parametrize("blocks", [4, 40])
def test_last_arriving_block_sees_all_earlier_writes(blocks):
    assert hand_on(COUNTED, blocks)[:64] == [blocks * (blocks - 1) // 2] * 64


@pytest.mark.parametrize("order", ["release", "acquire", "relaxed"])
def test_one_sided_ordering_by_a_counter_is_a_race(order):
    """An unrelated release in the kernel turns the race check on."""
    beside = '    asm volatile("st.release.gpu.global.u32 [%0], 1;" :: "l"(flags + 1));\n    __syncthreads();'
    with pytest.raises(EmulationError, match="race"):
        hand_on(COUNTED.replace("acq_rel", order).replace("    __syncthreads();", beside, 1), 4)


def test_kernels_with_fences_are_skipped():
    assert len(hand_on(HANDS_ON.replace("__syncthreads();", "__threadfence();"), 3)) == 128
