"""Test integer and warp instructions against Python and NumPy."""

import functools
import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernrec.ptx import EmulationError
from tests.helpers import lanes
from tests.helpers.depth import few_examples
from tests.helpers.paths import beside
from tests.helpers.ptx_text import LANE_POINTERS, apply, run

LANE = np.arange(32)


@pytest.mark.parametrize(("mode", "delta", "c", "source"), [
    ("bfly", 5, 31, LANE ^ 5),
    ("down", 3, 31, np.where(LANE + 3 < 32, LANE + 3, LANE)),
    ("up", 2, 0, np.where(LANE >= 2, LANE - 2, LANE)),
    ("idx", 7, 31, LANE * 0 + 7),
    # Mask 24 in bits 8 to 12 of c makes four segments of eight lanes.
    ("down", 3, 31 - 0 | 24 << 8, np.where(LANE % 8 + 3 < 8, LANE + 3, LANE)),
    ("up", 2, 24 << 8, np.where(LANE % 8 >= 2, LANE - 2, LANE)),
    ("idx", 10, 31 | 24 << 8, LANE // 8 * 8 + 2),
])  # fmt: skip
def test_shuffles_match_numpy(mode, delta, c, source):
    x = (LANE * 10).astype(np.uint32)
    got = apply(f"shfl.sync.{mode}.b32 {{d}}, {{a0}}, {delta}, {c}, -1", [x], ["u32"], "u32")
    np.testing.assert_array_equal(got, source * 10)
    flag = f"shfl.sync.{mode}.b32 %r20|%p1, {{a0}}, {delta}, {c}, -1; selp.u32 {{d}}, 1, 0, %p1"
    inside = apply(flag, [x], ["u32"], "u32")
    own = source == LANE
    assert (inside[~own] == 1).all()


def test_votes_match_numpy():
    x = (LANE % 3 == 0).astype(np.uint32)
    ask = "setp.ne.u32 %p1, {a0}, 0; "
    ballot = sum(1 << i for i in range(0, 32, 3))
    assert (apply(ask + "vote.sync.ballot.b32 {d}, %p1, -1", [x], ["u32"], "u32") == ballot).all()
    assert (apply(ask + "vote.sync.ballot.b32 {d}, !%p1, -1", [x], ["u32"], "u32") == ballot ^ 0xFFFFFFFF).all()
    for mode, want in (("any", 1), ("all", 0), ("uni", 0)):
        got = apply(ask + f"vote.sync.{mode}.pred %p2, %p1, -1; selp.u32 {{d}}, 1, 0, %p2", [x], ["u32"], "u32")
        assert (got == want).all()
    assert (apply("activemask.b32 {d}", [x], ["u32"], "u32") == 0xFFFFFFFF).all()
    active = apply(ask + "mov.u32 {d}, 0; @%p1 activemask.b32 {d}", [x], ["u32"], "u32")
    assert active.tolist() == [ballot if lane % 3 == 0 else 0 for lane in range(32)]


def test_l2_policies_change_no_result():
    x = (LANE * 3).astype(np.uint32)
    for policy in ("evict_last", "evict_first"):
        create = f"createpolicy.fractional.L2::{policy}.b64 %rd30, 1.0; mov.b64 {{d}}, %rd30"
        assert (apply(create, [x], ["u32"], "u64") == 0).all()
    with pytest.raises(EmulationError, match="a policy for a range of addresses"):
        apply("createpolicy.range.L2::evict_last.b64 {d}, [%rd1], 1, 1", [x], ["u32"], "u64")


def test_matches_and_reductions_match_numpy():
    x = (LANE % 5).astype(np.uint32)
    got = apply("match.any.sync.b32 {d}, {a0}, -1", [x], ["u32"], "u32")
    assert got.tolist() == [sum(1 << j for j in range(32) if j % 5 == i % 5) for i in range(32)]
    for value, agreed in ((x, 0), (x * 0, 0xFFFFFFFF)):
        got = apply("match.all.sync.b32 %r20|%p1, {a0}, -1; selp.u32 {d}, %r20, 0, %p1", [value], ["u32"], "u32")
        assert (got == agreed).all()
    signed = (LANE - 16).astype(np.int32)
    for name, want in (("add", -16), ("min", -16), ("max", 15)):
        assert (apply(f"redux.sync.{name}.s32 {{d}}, {{a0}}, -1", [signed], ["s32"], "s32") == want).all()
    bits, some = np.random.default_rng(0).integers(0, 2**32, 32, dtype=np.uint32), LANE % 4 != 0
    for name, law in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        of_some = "and.b32 %r20, %tid.x, 3; setp.ne.u32 %p1, %r20, 0; @%p1 redux.sync"
        got = apply(f"{of_some}.{name}.b32 {{d}}, {{a0}}, 0xeeeeeeee", [bits], ["u32"], "u32")
        assert (got[some] == law.reduce(bits[some])).all()


def test_warp_instructions_treat_lanes_with_different_masks_separately():
    x = (LANE % 4).astype(np.uint32)
    groups = [sum(1 << j for j in range(32) if j % 4 == i % 4) for i in range(32)]
    label = "match.any.sync.b32 %r20, {a0}, -1; mov.u32 %r21, %laneid; "
    got = apply(label + "redux.sync.max.u32 {d}, %r21, %r20", [x], ["u32"], "u32")
    assert got.tolist() == (28 + LANE % 4).tolist()
    low = "setp.lt.u32 %p1, %r21, 16; "
    got = apply(label + low + "vote.sync.ballot.b32 {d}, %p1, %r20", [x], ["u32"], "u32")
    assert got.tolist() == [group & 0xFFFF for group in groups]
    got = apply(label + "match.any.sync.b32 {d}, %r20, %r20", [x], ["u32"], "u32")
    assert got.tolist() == groups


def test_shuffle_mask_with_absent_lanes_is_a_deadlock():
    body = """mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 5; @%p1 bra LOW; bar.sync 0; bra.uni END;
      LOW: shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1; bar.sync 0;
      END:"""
    with pytest.raises(EmulationError, match="deadlock"):
        run(body)


def test_warp_barrier_gathers_its_lanes():
    out = np.zeros(32, np.uint32)
    body = """.shared .align 4 .b8 s[128]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r5, 0;
      bra.uni HEAD;
      AFTER: bar.warp.sync -1; xor.b32 %r3, %r2, 64; ld.shared.u32 %r4, [%r3];
      ld.param.u64 %rd1, [o]; cvt.u64.u32 %rd2, %r2; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r4; ret;
      HEAD: add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, %r1; @%p1 bra HEAD; st.shared.u32 [%r2], %r1; bra.uni AFTER;"""
    run(body, "u64 o", ["o"], {"o": out}, shared_bytes=0)
    np.testing.assert_array_equal(out, LANE ^ 16)


def test_barriers_order_the_threads_of_a_block():
    # Every thread passes its number to the next thread, in 8 rounds.
    out = np.zeros((3, 96), np.uint32)
    body = beside(__file__, "barriers_order_the_threads_of_a_block.ptx")
    counts = run(body, "u64 o", ["o"], {"o": out}, grid=(3,), block=(96,))
    assert (out == (np.arange(96) + 8) % 96).all()
    assert counts["barriers"] == 3 * 16
    assert counts["issue.bar"] == 3 * 3 * 16


def test_consumer_warp_waits_for_the_producer_warp():
    out = np.zeros(32, np.uint32)
    body = beside(__file__, "producer_arrives_and_consumer_waits.ptx")
    run(body, "u64 o", ["o"], {"o": out}, block=(64,))
    np.testing.assert_array_equal(out, LANE + 32)


def test_barrier_can_reduce_a_predicate():
    out = np.zeros(64, np.uint32)
    store = (
        """ld.param.u64 %rd1, [o]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r2;"""
    )
    ask = "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 40; "
    run(ask + "bar.red.popc.u32 %r2, 0, %p1;" + store, "u64 o", ["o"], {"o": out}, block=(64,))
    assert (out == 40).all()
    run(
        ask + "bar.red.and.pred %p2, 0, !%p1; selp.u32 %r2, 1, 0, %p2;" + store, "u64 o", ["o"], {"o": out}, block=(64,)
    )
    assert (out == 0).all()


def atomic(text: str, start: int, kind: str = "u32", threads: int = 64) -> tuple[int, list[int], dict[str, int]]:
    """Run one atomic by every thread on one word. Return the final word and each thread's result."""
    word, out = np.array([start], "u4"), np.zeros(threads, np.uint32)
    body = f"""mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [w]; {text}
      ld.param.u64 %rd3, [o]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd3, %rd2; st.global.u32 [%rd3], %r2;"""
    counts = run(body, "u64 w, u64 o", ["w", "o"], {"w": word, "o": out}, block=(threads,))
    return int(word[0]), out.tolist(), dict(counts)


def test_atomics_are_serialized():
    word, old, counts = atomic("atom.global.add.u32 %r2, [%rd1], 3;", 10)
    assert (word, old) == (10 + 3 * 64, [10 + 3 * i for i in range(64)])
    assert (counts["atomic.w"], counts["issue.atomic"], counts["global.w.atomic_sectors"]) == (64, 2, 2)
    assert atomic("atom.global.max.u32 %r2, [%rd1], %r1;", 5)[0] == 63
    assert atomic("atom.global.min.s32 %r2, [%rd1], -7;", 5)[0] == 2**32 - 7
    assert atomic("atom.global.cas.b32 %r2, [%rd1], %r1, 99;", 20)[0] == 99
    assert atomic("atom.global.exch.b32 %r2, [%rd1], %r1;", 20)[0] == 63
    assert atomic("atom.global.inc.u32 %r2, [%rd1], 9;", 0)[0] == 64 % 10
    assert atomic("red.global.add.u32 [%rd1], %r1; mov.u32 %r2, 0;", 0)[0] == 64 * 63 // 2
    total = atomic("cvt.rn.f32.u32 %f1, %r1; red.global.add.f32 [%rd1], %f1; mov.u32 %r2, 0;", 0)[0]
    assert np.uint32(total).view(np.float32) == 64 * 63 / 2


@pytest.mark.parametrize("marks", ["min", "max", "min.abs", "max.abs", "min.NaN", "max.abs.NaN"])
def test_float_redux_propagates_nan_only_if_requested(marks):
    x = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)
    x[1, 5] = np.nan
    out = np.zeros((2, 32), np.float32)
    body = f"{LANE_POINTERS} ld.global.f32 %f1, [%rd0]; redux.sync.{marks}.f32 %f2, %f1, -1; st.global.f32 [%rd1], %f2;"
    run(body, "u64 x, u64 o", ["x", "o"], {"x": x, "o": out}, block=(64,))
    values = np.abs(x) if "abs" in marks else x
    kind = {"min": np.fmin, "max": np.fmax} if "NaN" not in marks else {"min": np.minimum, "max": np.maximum}
    np.testing.assert_array_equal(out, np.repeat(kind[marks[:3]].reduce(values, axis=1)[:, None], 32, axis=1))


EDGES = [0, 1, 2, 3, 5, 7, 31, 32, 33, 63, 64, 127, 128, 255, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63]


def columns(count: int) -> st.SearchStrategy[list[list[int]]]:
    """Return columns of 32 numbers of up to 64 bits, with many edge cases."""
    return lanes.columns(lanes.integer(64, [*EDGES, 2**64 - 1, 2**64 - 2]), count)


def as_kind(values: list[int], kind: str) -> np.ndarray:
    bits = int(kind[1:])
    unsigned = np.array([v & ((1 << bits) - 1) for v in values], f"u{bits // 8}")
    return unsigned.view(f"i{bits // 8}") if kind[0] == "s" else unsigned


def wrap(value: int, kind: str) -> int:
    bits = int(kind[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def check(instruction: str, kinds: list[str], result: str, law: Callable[..., int], given_: list[list[int]]) -> None:
    inputs = [as_kind(column, kind) for column, kind in zip(given_, kinds, strict=True)]
    got = apply(instruction, inputs, kinds, result)
    rows = zip(*(i.tolist() for i in inputs), strict=True)
    assert got.tolist() == [wrap(law(*row), result) for row in rows]


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY = {
    "add": operator.add, "sub": operator.sub, "mul.lo": operator.mul, "min": min, "max": max,
    "div": lambda a, b: truncated(a, b) if b else -1, "rem": lambda a, b: a - truncated(a, b) * b if b else a,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("name", BINARY)
@few_examples(6)
@given(data=columns(2))
def test_integer_arithmetic_wraps(name, kind, data):
    check(f"{name}.{kind} {{d}}, {{a0}}, {{a1}}", [kind, kind], kind, BINARY[name], data)


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32"])
@few_examples(6)
@given(data=columns(3))
def test_wide_products_are_exact(kind, data):
    result = f"{kind[0]}{2 * int(kind[1:])}"
    check(f"mul.wide.{kind} {{d}}, {{a0}}, {{a1}}", [kind, kind], result, operator.mul, data[:2])
    law = lambda a, b, c: a * b + c  # noqa: E731
    check(f"mad.wide.{kind} {{d}}, {{a0}}, {{a1}}, {{a2}}", [kind, kind, result], result, law, data)


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
@few_examples(8)
@given(data=columns(3))
def test_high_and_low_products_match_python(kind, data):
    bits = int(kind[1:])
    check(f"mul.hi.{kind} {{d}}, {{a0}}, {{a1}}", [kind, kind], kind, lambda a, b: (a * b) >> bits, data[:2])
    law = lambda a, b, c: ((a * b) >> bits) + c  # noqa: E731
    check(f"mad.hi.{kind} {{d}}, {{a0}}, {{a1}}, {{a2}}", [kind] * 3, kind, law, data)
    check(f"mad.lo.{kind} {{d}}, {{a0}}, {{a1}}, {{a2}}", [kind] * 3, kind, lambda a, b, c: a * b + c, data)


@few_examples(8)
@given(data=columns(3), table=st.integers(0, 255))
def test_lop3_computes_any_logic_of_three_inputs(data, table):
    def law(a: int, b: int, c: int) -> int:
        return sum(((table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1))) & 1) << i for i in range(32))

    check(f"lop3.b32 {{d}}, {{a0}}, {{a1}}, {{a2}}, {table}", ["u32"] * 3, "u32", law, data)


@pytest.mark.parametrize("sign", ["s", "u"])
@few_examples(4)
@given(data=columns(3))
def test_dot_product_of_four_bytes_matches_python(sign, data):
    def law(a: int, b: int, c: int) -> int:
        octet = lambda v, i: wrap(v >> 8 * i, f"{sign}8")  # noqa: E731
        return c + sum(octet(a, i) * octet(b, i) for i in range(4))

    kind = f"{sign}32"
    check(f"dp4a.{kind}.{kind} {{d}}, {{a0}}, {{a1}}, {{a2}}", [kind] * 3, kind, law, data)


@pytest.mark.parametrize("source", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("to", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@few_examples(4)
@given(data=columns(1))
def test_integer_conversions_match_python(to, source, data):
    result = to if int(to[1:]) >= 16 else f"{to[0]}16"  # 16-bit registers hold 8-bit results, extended
    check(f"cvt.{to}.{source} {{d}}, {{a0}}", [source], result, lambda a: wrap(a, to), data)
    if to != source:
        low, high = (
            (-(1 << int(to[1:]) - 1), (1 << int(to[1:]) - 1) - 1) if to[0] == "s" else (0, (1 << int(to[1:])) - 1)
        )
        check(f"cvt.sat.{to}.{source} {{d}}, {{a0}}", [source], result, lambda a: max(low, min(high, a)), data)


@few_examples(10)
@example([[2**64 - 1] * 32, [2**64 - 1, 0] * 16, [1] * 32, [0] * 32])
@example([[0] * 32, [0, 5] * 16, [1] * 32, [0, 5] * 16])
@given(columns(4))
def test_carry_instructions_chain_words_into_wider_integers(numbers):
    a, b, c, d = numbers
    x0, x1, y0, y1 = (np.array(v, np.uint64) for v in numbers)
    for name, law in (("add", lambda p, q: p + q), ("sub", lambda p, q: p - q)):
        # Carries link the words of the 128-bit numbers (x1 x0) and (y1 y0).
        chain = f"{name}.cc.u64 %rd20, {{a0}}, {{a2}}; {name}c.cc.u64 %rd21, {{a1}}, {{a3}}; {name}c.u64 %rd22, 0, 0; "
        want = [law(p + (q << 64), r + (s << 64)) & (1 << 192) - 1 for p, q, r, s in zip(a, b, c, d, strict=True)]
        for word in range(3):
            got = apply(f"{chain} mov.u64 {{d}}, %rd2{word}", [x0, x1, y0, y1], ["u64"] * 4, "u64")
            assert got.tolist() == [w >> 64 * word & (1 << 64) - 1 for w in want]
    chain = "mad.lo.cc.u64 %rd20, {a0}, {a1}, {a2}; madc.hi.u64 %rd21, {a0}, {a1}, {a3}; "
    for word in range(2):
        got = apply(f"{chain} mov.u64 {{d}}, %rd2{word}", [x0, x1, y0, y1], ["u64"] * 4, "u64")
        want = [p * q + r + (s << 64) for p, q, r, s in zip(a, b, c, d, strict=True)]
        assert got.tolist() == [w >> 64 * word & (1 << 64) - 1 for w in want]


def test_carry_survives_other_instructions_and_can_be_overwritten():
    x = np.array([0xFFFFFFFF, 1] * 16, np.uint32)
    text = "add.cc.s32 {a0}, {a0}, 1; mul.lo.u32 %r20, {a0}, {a0}; add.u32 %r20, %r20, 7; addc.s32 {d}, %r20, {a0}"
    assert apply(text, [x], ["u32"], "u32")[:2].tolist() == [8, 4 + 7 + 2]


def extended(value: int, bits: int, kind: str) -> int:
    field = value & (1 << bits) - 1
    return field - (1 << bits) if kind[0] == "s" and bits and field >> (bits - 1) else field


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
@few_examples(6)
@given(data=columns(2))
def test_bit_field_instructions_match_python(mode, data):
    limit = (lambda n: n & 31) if mode == "wrap" else (lambda n: min(n, 32))
    for kind in ("u32", "s32"):
        law = functools.partial(lambda a, n, kind: extended(a, limit(n), kind), kind=kind)
        check(f"szext.{mode}.{kind} {{d}}, {{a0}}, {{a1}}", [kind, "u32"], kind, law, data)

    def mask(start: int, length: int) -> int:
        return sum(1 << bit for bit in range(limit(start), min(limit(start) + limit(length), 32)))

    check(f"bmsk.{mode}.b32 {{d}}, {{a0}}, {{a1}}", ["u32", "u32"], "u32", mask, data)


@pytest.mark.parametrize(("first", "half"), [("lo", 0), ("hi", 2)])
@pytest.mark.parametrize("sign", ["s", "u"])
@few_examples(4)
@given(data=columns(3))
def test_dp2a_uses_the_selected_half_of_the_bytes(sign, first, half, data):
    def law(a: int, b: int, c: int) -> int:
        octets = [wrap(b >> 8 * i, f"{sign}8") for i in range(4)]
        return c + sum((a >> 16 * i & 0xFFFF) * octets[half + i] for i in range(2))

    kind = f"{sign}32"
    check(f"dp2a.{first}.u32.{kind} {{d}}, {{a0}}, {{a1}}, {{a2}}", ["u32", kind, kind], kind, law, data)


@few_examples(4)
@given(data=columns(3))
def test_byte_differences_match_python(data):
    def apart(a: int, b: int) -> list[int]:
        return [abs((a >> 8 * i & 0xFF) - (b >> 8 * i & 0xFF)) for i in range(4)]

    kinds = ["u32", "u32", "u32"]
    merged = "vabsdiff4.u32.u32.u32 {d}, {a0}, {a1}, {a2}"
    check(merged, kinds, "u32", lambda a, b, c: int.from_bytes(apart(a, b), "little"), data)
    added = "vabsdiff4.u32.u32.u32.add {d}, {a0}, {a1}, {a2}"
    check(added, kinds, "u32", lambda a, b, c: c + sum(apart(a, b)), data)
