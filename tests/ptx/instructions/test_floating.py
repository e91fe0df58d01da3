"""Test that floating-point instructions round as IEEE 754 and the PTX manual specify."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given

from kernrec.ptx import EmulationError
from kernrec.ptx.ir.program import ParseError
from tests.helpers import lanes
from tests.helpers.depth import few_examples
from tests.helpers.ptx_text import apply, run

F32, MODEST = map(lanes.column, (lanes.single, lanes.modest))


def f32(values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


def same(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_equal(got, want)


@few_examples(12)
@given(a=F32, b=F32)
def test_single_operation_rounds_once(a, b):
    x, y = f32(a), f32(b)
    with np.errstate(all="ignore"):
        same(apply("add.f32 {d}, {a0}, {a1}", [x, y], ["f32"] * 2, "f32"), x + y)
        same(apply("sub.rn.f32 {d}, {a0}, {a1}", [x, y], ["f32"] * 2, "f32"), x - y)
        same(apply("mul.f32 {d}, {a0}, {a1}", [x, y], ["f32"] * 2, "f32"), x * y)
        same(apply("div.rn.f32 {d}, {a0}, {a1}", [x, y], ["f32"] * 2, "f32"), x / y)
        same(apply("rcp.rn.f32 {d}, {a0}", [x], ["f32"], "f32"), np.float32(1) / x)
        same(apply("sqrt.rn.f32 {d}, {a0}", [x], ["f32"], "f32"), np.sqrt(x))
        same(apply("max.f32 {d}, {a0}, {a1}", [x, y], ["f32"] * 2, "f32"), np.fmax(x, y))
        same(apply("min.NaN.f32 {d}, {a0}, {a1}", [x, y], ["f32"] * 2, "f32"), np.minimum(x, y))
        same(apply("neg.f32 {d}, {a0}", [x], ["f32"], "f32"), -x)
        same(apply("abs.f32 {d}, {a0}", [x], ["f32"], "f32"), np.abs(x))
        same(apply("copysign.f32 {d}, {a0}, {a1}", [x, y], ["f32"] * 2, "f32"), np.copysign(y, x))


@few_examples(8)
@given(a=F32, b=F32, c=F32)
def test_mixed_precision_arithmetic_widens_all_sources_but_the_last(a, b, c):
    with np.errstate(all="ignore"):
        x, y, z = f32(a).astype(np.float16), (f32(b).view(np.uint32) >> 16).astype(np.uint16), f32(c)
        wide = (y.astype(np.uint32) << 16).view(np.float32)
        same(apply("add.rn.f32.f16 {d}, {a0}, {a1}", [x, z], ["b16", "f32"], "f32"), x.astype(np.float32) + z)
        same(apply("add.rn.f32.bf16 {d}, {a0}, {a1}", [y, z], ["b16", "f32"], "f32"), wide + z)
        same(apply("sub.rz.f32.bf16 {d}, {a0}, {a1}", [y, wide], ["b16", "f32"], "f32"), wide - wide)
        products = apply("fma.rn.f32.f16 {d}, {a0}, {a1}, {a2}", [x, x, f32([1] * 32)], ["b16", "b16", "f32"], "f32")
        same(products, (x.astype(np.float64) ** 2 + 1).astype(np.float32))


@few_examples(20)
@given(a=F32, b=F32, c=F32)
def test_min_and_max_accept_three_operands_and_absolute_values(a, b, c):
    x, y, z = f32(a), f32(b), f32(c)
    three, kinds = [x, y, z], ["f32"] * 3
    same(apply("max.f32 {d}, {a0}, {a1}, {a2}", three, kinds, "f32"), np.fmax(np.fmax(x, y), z))
    same(apply("min.NaN.f32 {d}, {a0}, {a1}, {a2}", three, kinds, "f32"), np.minimum(np.minimum(x, y), z))
    same(apply("max.abs.f32 {d}, {a0}, {a1}, {a2}", three, kinds, "f32"), np.fmax(np.fmax(abs(x), abs(y)), abs(z)))
    signed = apply("min.xorsign.abs.f32 {d}, {a0}, {a1}", [x, y], kinds[:2], "f32")
    same(np.abs(signed), np.fmin(np.abs(x), np.abs(y)))
    number = ~np.isnan(signed)
    same(np.signbit(signed)[number], (np.signbit(x) != np.signbit(y))[number])


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_xorsign_min_clamps_values_symmetrically(kind):
    """Triton compiles a symmetric `tl.clamp` to `min.xorsign.abs`."""
    values = np.linspace(-3, 3, 128).astype(np.float32).view(np.uint32) & 0xFFFF0000
    wide = values.view(np.float32)
    bits = {"f32": wide, "f16": wide.astype(np.float16), "bf16": (values >> 16).astype(np.uint16)}[kind]
    size = bits.itemsize
    register, limit = ("%r", "0f3FC00000") if size == 4 else ("%rs", "0x3E00" if kind == "f16" else "0x3FC0")
    out = np.zeros_like(bits)
    run(
        f"mov.u32 %r50, %tid.x; mul.wide.u32 %rd3, %r50, {4 * size};"
        " ld.param.u64 %rd0, [x]; ld.param.u64 %rd1, [o]; add.u64 %rd0, %rd0, %rd3; add.u64 %rd1, %rd1, %rd3;"
        f" mov.b{8 * size} {register}9, {limit};"
        + "".join(f" ld.global.b{8 * size} {register}{i}, [%rd0+{i * size}];" for i in range(4))
        + "".join(f" min.xorsign.abs.{kind} {register}{i + 4}, {register}{i}, {register}9;" for i in range(4))
        + "".join(f" st.global.b{8 * size} [%rd1+{i * size}], {register}{i + 4};" for i in range(4)),
        "u64 x, u64 o",
        ["x", "o"],
        {"x": bits, "o": out},
    )
    clamped = np.clip(wide, -1.5, 1.5)
    same(out, {"f32": clamped, "f16": clamped.astype(np.float16), "bf16": clamped.view(np.uint32) >> 16}[kind])


@pytest.mark.parametrize(
    "instruction", ["max.f64 %fd0, %fd1, %fd2, %fd3", "min.s32 %r0, %r1, %r2, %r3", "add.f32 %f0, %f1"]
)
def test_wrong_operand_count_is_an_error_of_the_instruction(instruction):
    with pytest.raises((EmulationError, ParseError), match=instruction.split()[0]):
        run(f"{instruction};")


def nearest(value: Fraction) -> float:
    """Return the f32 nearest to a rational, with ties to even, by exact comparison with its neighbors."""
    guess = np.float32(float(value))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return float(min(around, key=lambda c: (abs(Fraction(float(c)) - value), int(c.view(np.uint32)) & 1)))


@given(a=MODEST, b=MODEST, c=MODEST)
def test_multiply_add_rounds_once(a, b, c):
    x, y, z = f32(a), f32(b), f32(c)
    got = apply("fma.rn.f32 {d}, {a0}, {a1}, {a2}", [x, y, z], ["f32"] * 3, "f32")
    exact = [Fraction(float(i)) * Fraction(float(j)) + Fraction(float(k)) for i, j, k in zip(x, y, z, strict=True)]
    want = [nearest(e) if abs(e) >= Fraction(2) ** -120 else None for e in exact]
    for g, w in zip(got.tolist(), want, strict=True):
        assert w is None or g == w


@pytest.mark.parametrize(("mode", "toward"), [("rm", -math.inf), ("rp", math.inf), ("rz", 0.0)])
@few_examples(10)
@example(a=[1.0] * 32, b=[2.0**-60] * 32)
@given(a=MODEST, b=MODEST)
def test_directed_rounding_never_passes_the_exact_value(mode, toward, a, b):
    x, y = f32(a), f32(b)
    for name, law in (("add", lambda p, q: p + q), ("mul", lambda p, q: p * q)):
        got = apply(f"{name}.{mode}.f32 {{d}}, {{a0}}, {{a1}}", [x, y], ["f32"] * 2, "f32")
        for g, i, j in zip(got, x, y, strict=True):
            exact = law(Fraction(float(i)), Fraction(float(j)))
            if abs(exact) < Fraction(2) ** -100:
                continue
            goal = toward if toward else math.copysign(0.0, exact)
            further = np.nextafter(g, np.float32(-goal if goal else math.copysign(math.inf, exact)))
            value = Fraction(float(g))
            if toward == math.inf:
                assert Fraction(float(further)) < exact <= value
            elif toward == -math.inf:
                assert value <= exact < Fraction(float(further))
            else:
                assert abs(value) <= abs(exact) < abs(Fraction(float(further)))


@pytest.mark.parametrize(("name", "law"), [
    ("ex2", np.exp2), ("lg2", np.log2), ("rcp", np.reciprocal), ("sqrt", np.sqrt), ("sin", np.sin), ("cos", np.cos),
    ("rsqrt", lambda v: 1 / np.sqrt(v)), ("tanh", np.tanh),
])  # fmt: skip
def test_approximations_are_within_the_documented_error(name, law):
    x = np.linspace(0.1, 3.1, 32).astype(np.float32)
    np.testing.assert_allclose(
        apply(f"{name}.approx.f32 {{d}}, {{a0}}", [x], ["f32"], "f32"), law(x), rtol=1e-6, atol=1e-6
    )


@few_examples(8)
@given(a=lanes.column(lanes.modest, 64))
def test_packed_f32_pairs_are_two_multiply_adds(a):
    x = f32(a)
    pairs = x.view(np.uint64)
    got = apply("fma.rn.f32x2 {d}, {a0}, {a1}, {a2}", [pairs] * 3, ["b64"] * 3, "b64").view(np.float32)
    halves = [apply("fma.rn.f32 {d}, {a0}, {a1}, {a2}", [x[i::2]] * 3, ["f32"] * 3, "f32") for i in (0, 1)]
    same(got[0::2], halves[0])
    same(got[1::2], halves[1])


def test_setp_combines_a_predicate_and_writes_its_complement():
    x = np.arange(32, dtype=np.int32)
    ask = "setp.lt.s32 %p3, {a0}, 20; setp.ge.and.s32 %p1|%p2, {a0}, 10, %p3; selp.u32 %r20, 1, 0, %p1; "
    got = apply(ask + "selp.u32 %r21, 2, 0, %p2; or.b32 {d}, %r20, %r21", [x], ["s32"], "u32")
    assert got.tolist() == [2] * 10 + [1] * 10 + [0] * 12
    inverted = "setp.lt.s32 %p3, {a0}, 20; setp.ge.or.s32 %p1, {a0}, 30, !%p3; selp.u32 {d}, 1, 0, %p1"
    assert apply(inverted, [x], ["s32"], "u32").tolist() == [0] * 20 + [1] * 12


@few_examples(10)
@given(a=F32)
def test_float_to_integer_conversion_clamps(a):
    x = f32(a)
    for mode, law in (("rzi", math.trunc), ("rni", round), ("rmi", math.floor), ("rpi", math.ceil)):
        for kind in ("s32", "u32", "s64", "u64"):
            bits = int(kind[1:])
            low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
            got = apply(f"cvt.{mode}.{kind}.f32 {{d}}, {{a0}}", [x], ["f32"], kind)
            for value, g in zip(x.tolist(), got.tolist(), strict=True):
                if math.isnan(value):
                    assert g == 0
                elif math.isinf(value):
                    assert g == (high if value > 0 else low)
                else:
                    assert g == max(low, min(high, law(value)))


def test_form_that_ptxas_rejects_is_an_error(refuses):
    refuses(run, [
        "add.rp.rn.f32 %f1, %f2, %f3;", "min.xorsign.f32 %f1, %f1, %f2;", "copysign.sat.f32 %f1, %f2, %f3;",
        "testp.finite.sat.f32 %p1, %f1;", "popc.s32 %r1, %r2;", "clz.s32 %r1, %r2;", "rem.b32 %r1, %r2, %r3;",
        "bfind.b32 %r1, %r2;", "abs.lo.s32 %r1, %r2;", "vote.uni.sync.ballot.b32 %r1, %p1, 1;",
    ])  # fmt: skip
