"""Test that the race check finds every missing barrier and reports nothing else."""

import pytest

from kernrec.ptx import EmulationError
from tests.helpers.ptx_text import run

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
