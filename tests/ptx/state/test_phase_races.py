"""Test that the race check reports each missing barrier or fence, and accepts code with all barriers and fences."""

import numpy as np
import pytest

from kernrec.ptx import Counts, EmulationError, KernelLaunch, emulate
from tests.helpers.paths import beside
from tests.helpers.ptx_text import cuda, run

CHUNKS, WORDS = 7, 64
HELPERS = beside(__file__, "helpers.cu")
PIPELINE = HELPERS + beside(__file__, "pipeline.cu")

RELEASE = """        int value = in[s][63 - t];
        arrive(&empty[s]);"""


def pipeline(old: str = "", new: str = "", check_races: bool = True) -> tuple[np.ndarray, np.ndarray, Counts]:
    """Run the pipeline with a part of it replaced. Return the expected result, the result and the counts."""
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


@pytest.mark.parametrize(("writer", "reader", "other", "right"), [
    ("bar.arrive 1, 64;", "bar.sync 1, 64;", "", True), ("bar.sync 1, 64;", "bar.sync 1, 64;", "", True),
    ("bar.sync 1, 96;", "bar.sync 1, 96;", "bar.arrive 1, 96;", True),
    ("bar.arrive 1, 64;", "bar.sync 2, 64;", "bar.sync 1, 64; bar.arrive 2, 64;", True),
    ("", "bar.sync 1, 64;", "bar.sync 1, 64;", False), ("", "bar.sync 1, 64;", "bar.arrive 1, 64;", False),
    ("bar.arrive 1, 64;", "bar.sync 2, 64;", "bar.arrive 2, 64; bar.sync 1, 64;", False),
])  # fmt: skip
def test_partial_barrier_orders_only_its_waiting_warps(writer, reader, other, right):
    source = HELPERS + beside(__file__, "some.cu")
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


def test_store_after_an_arrival_races_with_the_waiting_warp():
    body = """mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 32; @%p1 bra WAITS;
      bar.arrive 1, 64; st.shared.u32 [held], 2; bra.uni ENDS;
      WAITS: bar.sync 1, 64; ld.shared.u32 %r2, [held];
      ENDS:"""
    with pytest.raises(EmulationError, match=r"race: warp 1 .* reads byte 0 .* which warp 0 wrote"):
        run(body, block=(64,), globals_=".shared .align 4 .b8 held[4];", check_races=True)


PRODUCTS = HELPERS + beside(__file__, "products.cu")


def products(old: str = "", new: str = "") -> np.ndarray:
    assert old in PRODUCTS
    x, out = np.ones(1152, np.float16), np.zeros(128, np.float32)
    program = cuda(PRODUCTS.replace(old, new, 1), "sm_90a")
    emulate(program, KernelLaunch("k", (1,), (160,), ["x", "o"], {"x": x, "o": out}), check_races=True)
    return out


def test_tile_may_be_overwritten_only_after_waiting_for_its_product():
    """Nothing runs between the wait and the arrival, so that only the recorded ordering can reveal the race."""
    np.testing.assert_array_equal(products(), np.full(128, 3 * 4 * 16))
    wait = '        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");\n'
    arrival = "        arrive(&empty);\n"
    with pytest.raises(EmulationError, match=r"cp.async.bulk.*: race: warp 4 .* writes byte 0 .* several warps read"):
        products(wait + arrival, arrival + wait)


def test_block_must_not_exit_while_its_cluster_uses_its_memory():
    def run(*removed: str) -> None:
        source = HELPERS + beside(__file__, "pair.cu")
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
AGREEING = "mov.u32 %r2, 16; mov.u32 %r4, 5; st.shared.u32 [%r2], %r4; "


def check(body: str) -> None:
    run(HEAD + body, block=(128,), grid=(2,), check_races=True)


@pytest.mark.parametrize("body", [
    WRITE + BARRIER + READ_OTHER, WRITE + READ_OWN + BARRIER + READ_OTHER + READ_OWN + BARRIER + WRITE,
    READ_OWN + READ_OTHER + BARRIER + WRITE + WRITE, AGREEING + BARRIER + AGREEING,
])  # fmt: skip
def test_race_check_accepts_ordered_accesses(body):
    check(body)


@pytest.mark.parametrize(("body", "message"), [
    (WRITE + READ_OTHER, r"warp 0 of block number 0 reads byte 508 of shared memory, which warp 3 wrote"),
    (READ_OTHER + WRITE, r"writes byte 0 of shared memory, which warp 3 read"),
    (WRITE + BARRIER + READ_OTHER + WRITE, r"which warp 3 read"),
    ("mov.u32 %r2, 16; " + WRITE, r"byte 16 of shared memory, which warp \d wrote"),
    ("mov.u32 %r2, 16; " + READ_OWN + WRITE, r"which several warps read"),
    (AGREEING + "setp.gt.u32 %p1, %r1, 95; @%p1 " + WRITE, r"warp 3 .* writes byte 16 .* which warp 0 wrote"),
])  # fmt: skip
def test_race_check_names_unordered_accesses(body, message):
    with pytest.raises(EmulationError, match=message):
        check(body)
    run(HEAD + body, block=(128,))  # the kernel runs without the check


def test_race_is_detected_although_another_block_has_a_barrier():
    body = """setp.eq.u32 %p1, %ctaid.x, 0; @%p1 bra ZERO; st.shared.u32 [%r2], %r1; ld.shared.u32 %r4, [%r3];
      bra.uni END;
      ZERO: st.shared.u32 [%r2], %r1; bar.sync 0; ld.shared.u32 %r4, [%r3]; END:"""
    with pytest.raises(EmulationError, match="block number 1"):
        check(body)


HANDS_ON = beside(__file__, "hands_on.cu")
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
def test_release_and_acquire_make_data_visible_to_another_block(blocks):
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


def test_release_acquire_ordering_is_transitive_across_blocks():
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


COUNTED = beside(__file__, "counted.cu")


@pytest.mark.parametrize("blocks", [4, 40])
def test_last_arriving_block_sees_all_earlier_writes(blocks):
    assert hand_on(COUNTED, blocks)[:64] == [blocks * (blocks - 1) // 2] * 64


@pytest.mark.parametrize("order", ["release", "acquire", "relaxed"])
def test_counter_with_only_release_or_acquire_is_a_race(order):
    """An unrelated release in the kernel turns the race check on."""
    beside = '    asm volatile("st.release.gpu.global.u32 [%0], 1;" :: "l"(flags + 1));\n    __syncthreads();'
    with pytest.raises(EmulationError, match="race"):
        hand_on(COUNTED.replace("acq_rel", order).replace("    __syncthreads();", beside, 1), 4)


def test_race_check_skips_kernels_with_fences():
    assert len(hand_on(HANDS_ON.replace("__syncthreads();", "__threadfence();"), 3)) == 128
