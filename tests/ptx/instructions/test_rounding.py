"""Test rounding of half, bfloat16 and tf32 arithmetic against exact rationals and the PTX manual."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernrec.ptx import KernelLaunch, emulate
from tests.helpers import lanes
from tests.helpers.depth import few_examples
from tests.helpers.narrow_floats import bf16_bits, bf16_values, tf32_bits
from tests.helpers.paths import beside
from tests.helpers.ptx_text import apply, cuda, run

SPECIAL = [0, 1 << 15, 0x3C00, 0x3F80, 0x7BFF, 0x7C00, 0x7E00, 0x7F7F, 0x7F80, 0x7FC0, 0xFC00, 0xFF80, 1, 0x8001]
"""Bit patterns of zeros, ones, extreme numbers, infinities and NaN in f16 and bf16."""
F32 = lanes.column(lanes.integer(32, [bits << 16 for bits in SPECIAL] + [0x7F7FFFFF, 1, 0x80000001, 0x00800000]))
BITS = lanes.column(lanes.integer(16, SPECIAL))

# Each format is (NumPy integer type of its bits, values of given bit patterns).
Values = Callable[[np.ndarray], np.ndarray]


def f16_values(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint16).view(np.float16).astype(np.float64)


def bf16(bits: np.ndarray) -> np.ndarray:
    return bf16_values(np.asarray(bits, np.uint16)).astype(np.float64)


pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")  # the inputs include a signalling NaN


def f32(bits: list[int]) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


def nearest(value: Fraction, values: Values) -> float:
    """Return the 16-bit number nearest to a rational, with ties to even and overflow to infinity."""
    magnitudes = values(np.arange(0x8000))
    finite = magnitudes[np.isfinite(magnitudes)]
    size = abs(value)
    limit = Fraction(float(finite[-1])) + (Fraction(float(finite[-1])) - Fraction(float(finite[-2]))) / 2
    if size >= limit:
        return math.copysign(math.inf, value)
    index = int(np.searchsorted(finite, float(size)))
    around = [i for i in range(index - 2, index + 3) if 0 <= i < len(finite)]
    best = min(around, key=lambda i: (abs(Fraction(float(finite[i])) - size), i & 1))
    return math.copysign(float(finite[best]), value)


def check(got: np.ndarray, exact: list[Fraction | None], values: Values) -> None:
    for g, e in zip(values(got).tolist(), exact, strict=True):
        if e is not None:
            assert g == nearest(e, values)


def rational(law: Callable[..., Fraction], *sources: np.ndarray) -> list[Fraction | None]:
    rows = zip(*(s.tolist() for s in sources), strict=True)
    return [law(*map(Fraction, row)) if all(map(math.isfinite, row)) else None for row in rows]


FORMATS: list[tuple[str, Values]] = [("f16", f16_values), ("bf16", bf16)]
LAWS: list[tuple[str, Callable[..., Fraction], int]] = [
    ("add", lambda a, b: a + b, 2),
    ("sub", lambda a, b: a - b, 2),
    ("mul", lambda a, b: a * b, 2),
    ("fma", lambda a, b, c: a * b + c, 3),
]


@pytest.mark.parametrize(("kind", "values"), FORMATS)
@pytest.mark.parametrize(("name", "law", "sources"), LAWS)
@few_examples(10)
# A tiny term decides to which of two equally close bfloat16 numbers a result is rounded.
@example(a=[0x3F80] * 32, b=[0x3B80] * 32, c=[1] * 32)
@example(a=[0x3F81] * 32, b=[0x3FC0] * 32, c=[0x0001] * 16 + [0x8001] * 16)
@example(a=[0x0001] * 32, b=[0x3F00, 0x3F01] * 16, c=[0x8001, 0, 1, 0x8000] * 8)
@given(a=BITS, b=BITS, c=BITS)
def test_half_arithmetic_rounds_once(kind, values, name, law, sources, a, b, c):
    rows = [np.array(r, np.uint16) for r in (a, b, c)[:sources]]
    exact = rational(law, *(values(r) for r in rows))
    arguments = ", ".join(f"{{a{i}}}" for i in range(sources))
    check(apply(f"{name}.rn.{kind} {{d}}, {arguments}", rows, ["b16"] * sources, "b16"), exact, values)
    # Packed instructions compute two results in a register.
    pairs = [r.view(np.uint32).repeat(2) for r in rows]
    both = apply(f"{name}.rn.{kind}x2 {{d}}, {arguments}", pairs, ["b32"] * sources, "b32")
    check(both[::2].copy().view(np.uint16), exact, values)


@pytest.mark.parametrize(("kind", "values"), FORMATS)
def test_special_values_and_clamps_match_numpy(kind, values):
    unit, infinity, nan = (0x3C00, 0x7C00, 0x7E00) if kind == "f16" else (0x3F80, 0x7F80, 0x7FC0)
    x = np.array([unit, unit | 0x8000, infinity, infinity | 0x8000, nan, 0, 1, 0x8001] * 4, np.uint16)

    def of(text: str) -> list[float]:
        return values(apply(text, [x], ["b16"], "b16"))[:8].tolist()

    same = values(x)[:8]
    relu = of(f"mov.b16 %rs15, 0x8000; fma.rn.relu.{kind} {{d}}, {{a0}}, 0x{unit:x}, %rs15")
    assert relu[:4] == [1, 0, math.inf, 0]
    np.testing.assert_array_equal(of(f"add.{kind} {{d}}, {{a0}}, {{a0}}"), 2 * same)
    np.testing.assert_array_equal(of(f"sub.{kind} {{d}}, {{a0}}, {{a0}}"), [0, 0, *[math.nan] * 3, 0, 0, 0])
    if kind == "f16":
        assert of("add.sat.f16 {d}, {a0}, {a0}") == [1, 0, 1, 0, 0, 0, 2**-23, 0]
        assert of("add.ftz.f16 {d}, {a0}, {a0}")[6:] == [0, 0]
    with np.errstate(over="ignore"):
        tanh = of(f"tanh.approx.{kind} {{d}}, {{a0}}")
        ftz = ".ftz" if kind == "bf16" else ""
        ex2 = of(f"ex2.approx{ftz}.{kind} {{d}}, {{a0}}")
    np.testing.assert_allclose(tanh[:6], np.tanh(same[:6]), rtol=2**-8)
    np.testing.assert_array_equal(ex2[:6], [2, 0.5, math.inf, 0, math.nan, 1])


@example(bits=[0x7F7FFFFF, 0x7F7F7FFF, 0x7F800001, 0xFF800000, 0x00000001, 0x00008000, 0x00018000, 0x80008001] * 4)
@given(bits=F32)
def test_f32_to_bf16_uses_the_named_rounding(bits):
    x = f32(bits)
    exact = rational(lambda v: v, x.astype(np.float64))
    got = apply("cvt.rn.bf16.f32 {d}, {a0}", [x], ["f32"], "b16")
    check(got, exact, bf16)
    assert (got[np.isnan(x)] == 0x7FFF).all()
    np.testing.assert_array_equal(bf16(got)[np.isinf(x)], x[np.isinf(x)])
    down, up, zero = (bf16(apply(f"cvt.{m}.bf16.f32 {{d}}, {{a0}}", [x], ["f32"], "b16")) for m in ("rm", "rp", "rz"))
    finite = np.isfinite(x)
    assert (down[finite] <= x[finite]).all()
    assert (up[finite] >= x[finite]).all()
    np.testing.assert_array_equal(zero[finite], np.where(x > 0, down, up)[finite])
    exactly = (np.array(bits, np.uint32) & 0xFFFF) == 0
    assert (down[finite] == up[finite]).tolist() == exactly[finite].tolist()
    relu = bf16(apply("cvt.rn.relu.bf16.f32 {d}, {a0}", [x], ["f32"], "b16"))
    np.testing.assert_array_equal(relu[finite], np.maximum(bf16(got)[finite], 0))


@example(bits=[0x7F7FFFFF, 0x7F7FF000, 0x7F7FEFFF, 0x00001000, 0x00000FFF, 0x80001001, 0x00003000, 0x7FC00001] * 4)
@given(bits=F32)
def test_f32_to_tf32_rounds_ties_away_from_zero(bits):
    x = f32(bits)
    got = apply("cvt.rna.tf32.f32 {d}, {a0}", [x], ["f32"], "b32")
    assert (got & 0x1FFF)[~np.isnan(x)].tolist() == [0] * int((~np.isnan(x)).sum())
    for b, g in zip(bits, got.tolist(), strict=True):
        size = b & 0x7FFFFFFF
        if size <= 0x7F800000:
            assert g == (b & 0x80000000) | (size + 0x1000) >> 13 << 13
    even = tf32_bits(x, "rn").view(np.float32)[np.isfinite(x)]
    away = got.view(np.float32)[np.isfinite(x)]
    ties = (np.array(bits) & 0x1FFF)[np.isfinite(x)] == 0x1000
    np.testing.assert_array_equal(even[~ties], away[~ties])


@pytest.mark.parametrize(("kind", "values"), FORMATS)
@few_examples(6)
@given(a=lanes.column(lanes.integer(16, SPECIAL), 64), swap=st.booleans())
def test_packed_comparisons_are_independent(kind, values, a, swap):
    x = np.array(a, np.uint16)
    y = x.reshape(-1, 2)[:, ::-1].copy().reshape(-1) if swap else np.roll(x, 1)
    u, v = values(x).reshape(-1, 2), values(y).reshape(-1, 2)
    pairs = [x.view(np.uint32), y.view(np.uint32)]
    for name, law in (("lt", np.less), ("geu", lambda p, q: ~(p < q)), ("ne", lambda p, q: (p < q) | (p > q))):
        want = law(u, v)
        ask = f"setp.{name}.{kind}x2 %p1|%p2, {{a0}}, {{a1}}; selp.u32 %r20, 1, 0, %p1; selp.u32 %r21, 2, 0, %p2; "
        got = apply(ask + "or.b32 {d}, %r20, %r21", pairs, ["b32"] * 2, "u32")
        np.testing.assert_array_equal(got, want[:, 0] + 2 * want[:, 1])
        mask = apply(f"set.{name}.u32.{kind}x2 {{d}}, {{a0}}, {{a1}}", pairs, ["b32"] * 2, "u32")
        np.testing.assert_array_equal(mask.view(np.uint16).reshape(-1, 2), np.where(want, 0xFFFF, 0))
        ones = apply(f"set.{name}.{kind}x2.{kind}x2 {{d}}, {{a0}}, {{a1}}", pairs, ["b32"] * 2, "b32")
        np.testing.assert_array_equal(values(ones.view(np.uint16)).reshape(-1, 2), want)
        single = apply(
            f"setp.{name}.{kind} %p1, {{a0}}, {{a1}}; selp.u32 {{d}}, 1, 0, %p1", [x[:32], y[:32]], ["b16"] * 2, "u32"
        )
        np.testing.assert_array_equal(single, want.reshape(-1)[:32])


INTRINSICS = beside(__file__, "intrinsics.cu")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_cuda_header_intrinsics_match_numpy(kind, arch):
    rng = np.random.default_rng(4)
    numbers = rng.standard_normal((3, 64)).astype(np.float32)
    x = bf16_bits(numbers) if kind == "bf16" else numbers.astype(np.float16).view(np.uint16)
    y = np.zeros((11, 64), np.uint16)
    emulate(cuda(INTRINSICS, arch), KernelLaunch(kind, (1,), (32,), ["x", "y"], {"x": x, "y": y}))
    values = dict(FORMATS)[kind]
    a, b, c = values(x)
    want = np.stack([
        a + b, a - b, a * b, a * b + c, a > b, -a, abs(a), np.exp2(a), np.maximum(a, b), np.minimum(a, b),
        np.sqrt(abs(a)),
    ])  # fmt: skip
    rounded = bf16(bf16_bits(want)) if kind == "bf16" else want.astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(values(y), rounded, rtol=2.0**-7 if kind == "bf16" else 2.0**-10)
    np.testing.assert_array_equal(np.delete(values(y), [7, 10], 0), np.delete(rounded, [7, 10], 0))
    if kind == "bf16":
        emulate(cuda(INTRINSICS, arch), KernelLaunch("widen", (1,), (32,), ["x", "y"], {"x": x, "y": y}))
        np.testing.assert_array_equal(y[0], bf16_bits((a * 3).astype(np.float32)))


@pytest.mark.parametrize(("text", "dtype", "values"), [
    ("red.global.add.noftz.f16 [%rd1], %rs1;", "b16", f16_values),
    ("red.global.add.noftz.bf16 [%rd1], %rs1;", "b16", bf16),
    ("atom.global.add.noftz.f16x2 %r9, [%rd1], %r1;", "b32", f16_values),
    ("red.global.add.noftz.bf16x2 [%rd1], %r1;", "b32", bf16),
    ("red.global.v2.bf16x2.add.noftz [%rd1], {%r1, %r1};", "b32", bf16),
])  # fmt: skip
def test_atomic_half_sums_round_after_every_addition(text, dtype, values):
    word = np.zeros(4, np.uint16)
    unit = 0x3C00 if values is f16_values else 0x3F80
    body = f"mov.b16 %rs1, 0x{unit:x}; mov.b32 %r1, {{%rs1, %rs1}}; ld.param.u64 %rd1, [w];" + text
    counts = run(body, "u64 w", ["w"], {"w": word}, block=(512,))
    parts = {"b16": 1, "b32": 2}[dtype] * (2 if "v2" in text else 1)
    total = 512 if values is f16_values else 256  # bfloat16 rounds 256 + 1 back to 256
    assert values(word).tolist() == [total] * parts + [0] * (4 - parts)
    assert counts["atomic.w"] == 512
    assert counts["global.w.atomic_bytes"] == 512 * 2 * parts


@few_examples(6)
@given(pairs=st.lists(st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)), min_size=32, max_size=32))
@example(pairs=[(5e-324, 0.3), (1e308, 1e308), (1.0, 3.0), (-2.0, 7.0)] * 8)
def test_f64_arithmetic_uses_the_named_rounding(pairs):
    a, b = (np.array(values) for values in zip(*pairs, strict=True))
    exactly = {
        "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
    }  # fmt: skip
    for opcode, compute in exactly.items():
        low, high, zero = (
            apply(f"{opcode}.{mode}.f64 {{d}}, {{a0}}, {{a1}}", [a, b], ["f64"] * 2, "f64")
            for mode in ("rm", "rp", "rz")
        )
        for x, y, lower, upper, toward in zip(a, b, low, high, zero, strict=True):
            if not (math.isfinite(x) and math.isfinite(y)) or (opcode == "div" and y == 0):
                continue
            exact = compute(Fraction(float(x)), Fraction(float(y)))
            assert lower <= exact <= upper
            with np.errstate(over="ignore"):
                assert upper == lower or upper == np.nextafter(lower, np.inf)
            assert exact != upper or upper == lower
            assert toward == (lower if exact > 0 else upper)
    roots = np.abs(a[np.isfinite(a)])
    roots = np.resize(roots, 32) if len(roots) else np.ones(32)
    low, high = (apply(f"sqrt.{mode}.f64 {{d}}, {{a0}}", [roots], ["f64"], "f64") for mode in ("rm", "rp"))
    for x, lower, upper in zip(roots, low, high, strict=True):
        assert Fraction(float(lower)) ** 2 <= Fraction(float(x)) <= Fraction(float(upper)) ** 2
        assert upper == lower or upper == np.nextafter(lower, np.inf)
