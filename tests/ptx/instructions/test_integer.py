"""Test that integer instructions agree with Python's integers for all inputs."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.helpers import lanes
from tests.helpers.depth import few_examples
from tests.helpers.ptx_text import apply

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
def test_carries_chain_words_into_wider_numbers(numbers):
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
def test_bit_fields_are_extended_and_bit_masks_created(mode, data):
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
def test_two_way_dot_products_use_half_the_bytes(sign, first, half, data):
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
