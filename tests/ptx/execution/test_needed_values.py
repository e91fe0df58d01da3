"""Where only counts are asked for, few values are computed, and the counts are those of a run with all values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.ptx import Counts, EmulationError, KernelLaunch
from kernrec.ptx.execution.emulator import Emulation, EmulationOptions
from kernrec.ptx.instructions.needed_values import needed_values
from kernrec.ptx.state.touched_sectors import Touched, TouchedSectors
from tests.helpers.depth import few_examples
from tests.helpers.ptx_text import module

SHARED = ".shared .align 16 .b8 tile[256];"
PARAMETERS = "u64 x, u64 y, u32 n"
START = """
ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u32 %r7, [n]; mov.u64 %rd3, tile;
mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, 5; mov.u32 %r3, 0; shl.b32 %r4, %r0, 2; mov.u32 %r5, %r7;
setp.gt.u32 %p0, %r0, 20; mov.u32 %r9, 0;
"""
registers = st.sampled_from([f"%r{i}" for i in range(6)])
guards = st.sampled_from(["", "", "@%p0 ", "@!%p0 "])
ARITHMETIC = [
    "add.u32 {a}, {b}, {c};", "mad.lo.u32 {a}, {b}, {c}, 12;", "xor.b32 {a}, {b}, {c};", "mov.u32 {a}, %tid.x;",
    "sub.cc.u32 {a}, {b}, {c}; subc.u32 {c}, {b}, {c};", "setp.lt.u32 %p0, {a}, {b};", "selp.b32 {a}, {b}, {c}, %p0;",
]  # fmt: skip
ACCESSES = [
    "ld.{space}.u32 {b}, [%rd4];", "st.{space}.u32 [%rd4], {b};", "red.{space}.add.u32 [%rd4], {b};",
    "ld.u32 {b}, [%rd6];", "atom.{space}.exch.b32 {c}, [%rd4], {b};", "ld.{space}.u32 {a}, [%rd4];",
]  # fmt: skip
OF_WARPS = [
    "shfl.sync.bfly.b32 {a}|%p0, {b}, 3, 31, -1;", "redux.sync.add.u32 {a}, {b}, -1;",
    "vote.sync.any.pred %p0, %p0, -1;", "cp.async.ca.shared.global [%rd5], [%rd1], 4; cp.async.wait_all;",
]  # fmt: skip


@st.composite
def instructions(draw: st.DrawFn, diverged: bool) -> str:
    """An instruction on any registers; an access is to an address that any of them decides."""
    a, b, c = draw(registers), draw(registers), draw(registers)
    space, base = draw(st.sampled_from([("global", "%rd1"), ("global", "%rd2"), ("shared", "%rd3")]))
    text = draw(st.sampled_from([*ARITHMETIC, *ACCESSES, *([] if diverged else OF_WARPS)]))
    guard = "" if text in OF_WARPS or text.count(";") > 1 else draw(guards)
    address = (
        f"and.b32 %r8, {a}, 252; cvt.u64.u32 %rd8, %r8; add.u64 %rd4, {base}, %rd8; add.u64 %rd5, %rd3, %rd8;"
        f" mov.u64 %rd6, %rd1; add.u64 %rd6, %rd6, %rd8; "
    )
    return (address if text in ACCESSES or "cp.async" in text else "") + guard + text.format(a=a, b=b, c=c, space=space)


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """A loop of three trips around some instructions, of which a branch skips some."""
    always = "\n".join(draw(st.lists(instructions(False), min_size=2, max_size=8)))
    sometimes = "\n".join(draw(st.lists(instructions(True), max_size=4)))
    return f"""{START}
LOOP: {always}
setp.lt.u32 %p1, {draw(registers)}, {draw(registers)}; @%p1 bra SKIP;
{sometimes}
SKIP: bar.sync 0; add.u32 %r9, %r9, 1; setp.lt.u32 %p2, %r9, 3; @%p2 bra LOOP;
"""


def outcome(body: str, values: bool) -> tuple[Counts, list[dict[str, dict[int, Touched]]]]:
    """Counts of two blocks, and what each touches."""
    touched = TouchedSectors([0, 1])
    numbers = np.random.default_rng(3).integers(0, 99, 128).astype(np.uint32)
    launch = KernelLaunch("k", (2,), (64,), ["x", "y", np.uint32(7)], {"x": numbers, "y": numbers[::-1].copy()})
    options = EmulationOptions(2, values=values, touched=touched)
    counts = Emulation(module(SHARED + body, PARAMETERS), launch, options).run([0, 1])
    return counts, [touched.by_block(written) for written in (False, True)]


def words(touched: list[dict[str, dict[int, Touched]]]) -> list[dict[str, dict[int, list[int]]]]:
    return [
        {buffer: {block: part.words.tolist() for block, part in blocks.items()} for buffer, blocks in kind.items()}
        for kind in touched
    ]


@few_examples(60)
@given(bodies())
def test_counts_do_not_depend_on_what_is_left_out(body: str) -> None:
    (full, touched), (quick, again) = outcome(body, True), outcome(body, False)
    assert quick == full
    assert words(again) == words(touched)


def needed(body: str) -> set[str]:
    values = needed_values(module(SHARED + START + body, PARAMETERS).functions["k"])
    assert values is not None
    return {*values.registers}


SUM = "ld.global.u32 %r10, [%rd1]; ld.shared.u32 %r11, [%rd3]; mad.lo.u32 %r12, %r10, %r11, %r0;"


def test_a_sum_that_is_only_stored_is_not_needed() -> None:
    assert needed(f"{SUM} st.global.u32 [%rd2], %r12;").isdisjoint({"%r10", "%r11", "%r12"})


def test_what_an_address_or_a_branch_is_computed_from_is_needed() -> None:
    address = "cvt.u64.u32 %rd9, %r12; add.u64 %rd9, %rd9, %rd1; ld.global.u32 %r13, [%rd9];"
    assert needed(f"{SUM} {address}") >= {"%r10", "%r11", "%r12", "%r0"}
    assert needed(f"{SUM} setp.eq.u32 %p1, %r12, 0; @%p1 bra OUT; OUT:") >= {"%r10", "%r11", "%r12"}


def test_what_is_stored_where_a_needed_value_is_loaded_is_needed() -> None:
    through = "ld.{0}.u32 %r13, [%rd3]; setp.eq.u32 %p1, %r13, 0; @%p1 bra OUT; OUT:"
    stored = "mul.lo.u32 %r14, %r0, 3; st.{0}.u32 [%rd3], %r14; "
    assert "%r14" in needed((stored + through).format("shared"))
    assert "%r14" not in needed(stored.format("shared") + through.format("global"))


def test_a_carry_that_decides_a_branch_is_followed() -> None:
    borrows = "sub.cc.u32 %r10, %r0, %r7; subc.u32 %r11, %r3, %r3; setp.ne.u32 %p1, %r11, 0; @%p1 bra OUT;"
    body = f"{START} {borrows} ld.global.u32 %r12, [%rd1]; OUT:"
    (full, _), (quick, _) = outcome(body, True), outcome(body, False)
    assert quick == full
    assert full["global.x.read_bytes"] == 2 * (64 - 7) * 4


def test_an_unknown_instruction_is_refused_though_nobody_needs_its_result() -> None:
    with pytest.raises(EmulationError, match="does not support"):
        outcome(f"{START} createpolicy.range.global.L2::evict_last.b64 %rd9, [%rd1], 4, 4;", values=False)
