"""Test that blocks may pass data through global memory if ordered; each broken ordering is an error."""

import numpy as np
import pytest

from kernrec.ptx import EmulationError, KernelLaunch, emulate
from tests.helpers.ptx_text import cuda

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
