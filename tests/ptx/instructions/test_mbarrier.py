"""Test producers and consumers that `mbarrier` synchronizes, endless kernels and misused barriers."""

import numpy as np
import pytest

from kernrec.ptx import Counts, EmulationError
from tests.helpers.ptx_text import run

STEPS = 5
PIPE = f"""
    .shared .align 8 .b64 bar[2]; .shared .align 4 .b32 s[32];
    mov.u32 %r0, %tid.x; mov.u32 %r1, bar; mov.u32 %r2, s; ld.param.u64 %rd0, [o];
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r1], 32;
    @%p0 mbarrier.init.shared::cta.b64 [%r1+8], 32;
    bar.sync 0;
    mov.u32 %r9, 0; mov.u32 %r10, 0; mov.u32 %r11, 1;
    setp.ge.u32 %p1, %r0, 32;
    @%p1 bra CONSUMER;
PRODUCER:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+8], %r11;
    @!%p2 bra PRODUCER;
    shl.b32 %r3, %r0, 2; add.u32 %r3, %r3, %r2;
    mad.lo.u32 %r4, %r9, 100, %r0;
    st.shared.u32 [%r3], %r4;
    mbarrier.arrive.shared::cta.b64 %rd5, [%r1];
    xor.b32 %r11, %r11, 1;
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p3, %r9, {STEPS};
    @%p3 bra PRODUCER;
    bra END;
CONSUMER:
    mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r1], %r10;
    @!%p2 bra CONSUMER;
    sub.u32 %r8, %r0, 32; xor.b32 %r5, %r8, 1; shl.b32 %r5, %r5, 2; add.u32 %r6, %r5, %r2;
    ld.shared.u32 %r7, [%r6];
    mad.lo.u32 %r8, %r9, 32, %r8; mul.wide.u32 %rd1, %r8, 4; add.u64 %rd1, %rd1, %rd0;
    st.global.u32 [%rd1], %r7;
    mbarrier.arrive.release.cta.shared::cta.b64 _, [%r1+8];
    xor.b32 %r10, %r10, 1;
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p3, %r9, {STEPS};
    @%p3 bra CONSUMER;
END:
"""
WANTED = np.arange(STEPS)[:, None] * 100 + (np.arange(32) ^ 1)


def pipe(old: str = "", new: str = "") -> tuple[np.ndarray, Counts]:
    """Run the pipe with a part of it replaced; return its output and the counts."""
    assert old in PIPE
    out = np.zeros((STEPS, 32), np.uint32)
    counts = run(PIPE.replace(old, new), "u64 o", ["o"], {"o": out}, block=(64,), check_races=True)
    return out, counts


def test_producer_and_consumer_stay_synchronized():
    out, counts = pipe()
    np.testing.assert_array_equal(out, WANTED)
    assert counts["mbarrier.waits"] >= 2 * STEPS


def test_broken_pipeline_ends_in_one_clear_error(refuses):
    refuses(lambda old, new: pipe(old, new), [
        ("[%r1+8], 32", "[%r1+8], 33"), ("xor.b32 %r10, %r10, 1;", ""),
        ("@%p0 mbarrier.init.shared::cta.b64 [%r1], 32;", ""), ("[%r1], 32", "[%r1], 0"),
        ("arrive.shared::cta.b64 %rd5, [%r1]", "arrive.shared::cta.b64 %rd5, [%r1+4]"),
        ("_, [%r1+8];", "_, [%r1+8], 33;"),
    ])  # fmt: skip


def test_invalidated_barrier_can_be_replaced():
    start, end = "mbarrier.init.shared.b64 [%r1], 1;", "mbarrier.inval.shared.b64 [%r1];"
    head = ".shared .align 8 .b64 bar; mov.u32 %r1, bar;"
    run(f"{head} {start} {end} {start}", block=(1,))
    run(f"{head} {start} st.shared.b64 [%r1], 0; {start}", block=(1,))  # the barrier no longer exists
    with pytest.raises(EmulationError, match=r"byte 0 of shared memory, which is initialized already, with no .*inval"):
        run(f"{head} {start} {start}", block=(1,))


def test_barrier_can_be_tested_before_its_phase_completes():
    body = """
    .shared .align 8 .b64 bar; mov.u32 %r1, bar; ld.param.u64 %rd0, [o];
    mbarrier.init.shared.b64 [%r1], 1;
    mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;
    mbarrier.arrive.shared.b64 %rd1, [%r1];
    mbarrier.test_wait.shared.b64 %p2, [%r1], %rd1;
    mbarrier.pending_count.b64 %r4, %rd1;
    selp.u32 %r2, 1, 0, %p1; selp.u32 %r3, 1, 0, %p2;
    st.global.u32 [%rd0], %r2; st.global.u32 [%rd0+4], %r3; st.global.u32 [%rd0+8], %r4;
    """
    out = np.full(3, 9, np.uint32)
    run(body, "u64 o", ["o"], {"o": out}, block=(1,))
    assert out.tolist() == [0, 1, 1]


def test_copies_arrive_at_a_barrier_when_done():
    body = """
    .shared .align 8 .b64 bar; .shared .align 16 .b8 s[512];
    mov.u32 %r0, %tid.x; mov.u32 %r1, bar; mov.u32 %r2, s; ld.param.u64 %rd0, [x]; ld.param.u64 %rd1, [o];
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared.b64 [%r1], 32;
    bar.sync 0;
    shl.b32 %r3, %r0, 4; add.u32 %r4, %r2, %r3; cvt.u64.u32 %rd2, %r3;
    add.u64 %rd0, %rd0, %rd2; add.u64 %rd1, %rd1, %rd2;
    cp.async.ca.shared.global [%r4], [%rd0], 16;
    cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];
    W: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;
    @!%p1 bra W;
    sub.u32 %r5, 496, %r3; add.u32 %r5, %r5, %r2; ld.shared.v2.b64 {%rd3, %rd4}, [%r5];
    st.global.v2.b64 [%rd1], {%rd3, %rd4};
    """
    x, out = np.arange(64, dtype=np.uint64).reshape(32, 2), np.zeros((32, 2), np.uint64)
    run(body, "u64 x, u64 o", ["x", "o"], {"x": x, "o": out}, check_races=True)
    np.testing.assert_array_equal(out, x[::-1])
