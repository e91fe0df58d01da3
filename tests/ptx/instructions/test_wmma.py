"""Test `wmma`, 8-bit and block-scaled `mma.sync` products against NumPy and the PTX manual."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.compile import compile_source
from kernrec.ptx import EmulationError, KernelLaunch, emulate, parse
from kernrec.util.small_floats import small_codes, small_values
from tests.helpers.narrow_floats import bf16_bits, bf16_values, tf32_bits
from tests.helpers.paths import beside
from tests.helpers.ptx_text import cuda, run

WIDE = ((16, 16, 16), (32, 8, 16), (8, 32, 16))


def pack(values: np.ndarray, bits: int) -> np.ndarray:
    digits = (values.astype(np.int64)[..., None] >> np.arange(bits)) & 1
    return np.packbits(digits.astype(np.uint8).reshape(len(values), -1), axis=1, bitorder="little")


def draw(kind: str, shape: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a matrix. Return its numbers and its row-major memory contents."""
    random = np.random.default_rng(seed)
    if kind in ("s8", "u8", "s4", "u4", "b1", "s32"):
        bits = int(kind[1:])
        low, high = (-(1 << bits - 1), 1 << bits - 1) if kind[0] == "s" else (0, 1 << bits)
        values = random.integers(max(low, -1000), min(high, 1000), shape)
        if bits < 8:
            return values, pack(values, bits)
        return values, values.astype({8: "u1" if kind[0] == "u" else "i1", 32: "i4"}[bits])
    real = random.standard_normal(shape).astype(np.float64)
    if kind == "bf16":
        stored = bf16_bits(real.astype(np.float32))
        return bf16_values(stored).astype(np.float64), stored
    if kind == "tf32":
        stored = tf32_bits(real.astype(np.float32), "rna")
        return stored.view(np.float32).astype(np.float64), stored
    stored = real.astype({"f16": "f2", "f32": "f4", "f64": "f8"}[kind])
    return stored.astype(np.float64), stored


def fragment(kind: str, operand: str, m: int, n: int, k: int) -> int:
    """Return the number of registers of a fragment (PTX ISA, section 9.7.14.4.1)."""
    if operand in "ab":
        elements = m * k if operand == "a" else k * n
        bits = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64}.get(kind) or int(kind[1:])
        return 8 if kind == "f16" else elements * bits // (32 * max(32, bits if kind == "f64" else 32))
    return m * n // 32 if kind != "f16" else m * n // 64


def multiply(
    m: int, n: int, k: int, types: tuple[str, str, str, str], layouts: str, suffix: str = ""
) -> tuple[Any, Any, Any]:
    """Return D, NumPy's A B + C, and the counts. `layouts` holds `r` or `c` for a, b, c and d."""
    d, a, b, c = types
    names = {"r": "row", "c": "col"}
    shape = f"m{m}n{n}k{k}"
    numbers, memory, lines = {}, {}, []
    extents = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}
    wide = "b64" if a == "f64" else "b32"
    declared = ", ".join(f"%{x}{i}" for x in "abcd" for i in range(8))
    listed = {}
    for x, kind, layout in zip("dabc", types, layouts[3] + layouts[:3], strict=True):
        listed[x] = "{" + ", ".join(f"%{x}{i}" for i in range(fragment(kind, x, m, n, k))) + "}"
        values, stored = draw(kind, extents[x], ord(x))
        if layout == "c":
            stored = pack(values.T, int(kind[1:])) if kind in ("s4", "u4", "b1") else stored.T
        numbers[x], memory[x] = values, np.ascontiguousarray(stored)
        stride = extents[x][layout == "r"]
        lines.append(f"ld.param.u64 %p{x}, [{x}];")
        if x != "d":
            lines.append(
                f"wmma.load.{x}.sync.aligned.{names[layout]}.{shape}.global.{kind} {listed[x]}, [%p{x}], {stride};"
            )
    memory["d"][:] = 0
    typed = f"{d}.{a}.{b}.{c}" if a != "f16" else f"{d}.{c}"
    head = f"wmma.mma{suffix}.sync.aligned.{names[layouts[0]]}.{names[layouts[1]]}"
    lines.append(f"{head}.{shape}.{typed} {listed['d']}, {listed['a']}, {listed['b']}, {listed['c']};")
    lines.append(f"wmma.store.d.sync.aligned.{names[layouts[3]]}.{shape}.global.{d} [%pd], {listed['d']};")
    module = parse(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k("
        + ", ".join(f".param .u64 {x}" for x in "abcd")
        + f")\n{{\n.reg .{wide} {declared};\n.reg .b64 %pa, %pb, %pc, %pd;\n"
        + "\n".join(lines)
        + "\nret;\n}"
    )
    counts = emulate(module, KernelLaunch("k", (1,), (32,), list("abcd"), memory))
    result = memory["d"].T if layouts[3] == "c" else memory["d"]
    return result, numbers, counts


CASES = [
    *((shape, (d, "f16", "f16", c)) for shape in WIDE for d, c in (("f32", "f32"), ("f16", "f16"), ("f32", "f16"))),
    *((shape, ("f32", "bf16", "bf16", "f32")) for shape in WIDE),
    *((shape, ("s32", kind, kind, "s32")) for shape in WIDE for kind in ("s8", "u8")),
    ((16, 16, 8), ("f32", "tf32", "tf32", "f32")),
    ((8, 8, 4), ("f64", "f64", "f64", "f64")),
]


@pytest.mark.parametrize(("shape", "types"), CASES)
@pytest.mark.parametrize("layouts", ["rcrr", "crcr", "rrrc"])
def test_every_shape_and_layout_multiplies(shape, types, layouts):
    result, numbers, counts = multiply(*shape, types, layouts)
    expected = numbers["a"] @ numbers["b"] + numbers["c"]
    tolerance = 1e-2 if types[0] == "f16" else 1e-5
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance, atol=tolerance)
    m, n, k = shape
    assert sum(value for name, value in counts.items() if name.startswith("mma.")) == 2 * m * n * k


@pytest.mark.parametrize("kind", ["s4", "u4"])
def test_4_bit_integers_multiply(kind):
    result, numbers, counts = multiply(8, 8, 32, ("s32", kind, kind, "s32"), "rcrr")
    np.testing.assert_array_equal(result, numbers["a"] @ numbers["b"] + numbers["c"])
    assert counts["mma.i8"] == 8 * 8 * 32  # tensor cores run 4-bit operations at twice the 8-bit rate


@pytest.mark.parametrize(("operation", "pairs"), [("xor", np.not_equal), ("and", np.logical_and)])
def test_binary_mma_combines_and_counts_bits(operation, pairs):
    result, numbers, _ = multiply(8, 8, 128, ("s32", "b1", "b1", "s32"), "rcrr", f".{operation}.popc")
    counted = pairs(numbers["a"][:, :, None], numbers["b"][None]).sum(axis=1)
    np.testing.assert_array_equal(result, counted + numbers["c"])


def test_wmma_api_kernel_computes_a_product_with_an_epilogue():
    n = 64
    random = np.random.default_rng(1)
    a, b = (random.standard_normal((n, n)).astype(np.float16) for _ in range(2))
    c = np.zeros((n, n), np.float32)
    counts = emulate(
        cuda(beside(__file__, "wmma.cu")),
        KernelLaunch("k", (4, 4), (32,), ["a", "b", "c", np.int32(n)], {"a": a, "b": b, "c": c}),
    )
    expected = np.maximum(2 * (a.astype(np.float64) @ b.T.astype(np.float64)), 0)
    np.testing.assert_allclose(c, expected, rtol=1e-3, atol=1e-3)
    assert counts["mma.f16"] == 2 * n**3
    # Each 16 x 16 tile takes two machine instructions of 16 x 8 x 16 (`mma.sync.m16n8k16`).
    assert counts["issue.mma"] == 2 * (n // 16) ** 3
    # A row of 16 halves of A fills a sector. Four blocks read each sector once.
    assert counts["global.a.read_bytes"] == 4 * a.nbytes


def test_unsupported_wmma_types_are_refused():
    for types, shape in (
        (("f32", "bf16", "bf16", "f16"), (16, 16, 16)),
        (("f32", "tf32", "tf32", "f32"), (16, 16, 16)),
    ):
        with pytest.raises(EmulationError, match="wmma"):
            multiply(*shape, types, "rcrr")


KINDS = ("e4m3", "e5m2")
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
SMALLEST = {"e4m3": 2.0**-9, "e5m2": 2.0**-16}
CODES = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("kind", KINDS)
def test_every_finite_fp8_value_survives_conversion_to_float_and_back(kind):
    values = small_values("f8" + kind, CODES)
    finite = np.isfinite(values)
    assert np.array_equal(small_codes("f8" + kind, values)[finite], CODES[finite])
    assert np.nanmax(values[finite]) == LARGEST[kind]
    assert values[1] == SMALLEST[kind]


@given(st.sampled_from(KINDS), st.floats(width=32, allow_nan=False))
def test_conversion_rounds_to_nearest_even(kind, x):
    expected = small_values("f8" + kind, CODES)
    expected = expected[np.isfinite(expected)].astype(np.float64)
    (code,) = small_codes("f8" + kind, np.array([x], np.float32))
    value = float(small_values("f8" + kind, np.array([code]))[0])
    wanted = min(max(x, -LARGEST[kind]), LARGEST[kind])
    distance = np.abs(expected - wanted).min()
    assert abs(value - wanted) == distance
    if len(np.unique(expected[np.abs(expected - wanted) == distance])) > 1:
        assert code % 2 == 0


def test_nan_stays_nan_when_converted_to_fp8():
    for kind in KINDS:
        assert np.isnan(small_values("f8" + kind, small_codes("f8" + kind, np.array([np.nan], np.float32))))[0]


@pytest.mark.parametrize("kind", KINDS)
def test_second_of_a_converted_pair_is_in_the_lower_byte(nvrtc, kind):
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32) * 100
    codes, halves = np.zeros(32, np.uint16), np.zeros(32, np.uint32)
    module = parse(compile_source(beside(__file__, "convert.cu").replace("K", kind), 89).ptx)
    launch = KernelLaunch("convert", (1,), (32,), ["x", "c", "h"], {"x": x, "c": codes, "h": halves}, 0, {}, {})
    emulate(module, launch)
    assert np.array_equal(codes.view(np.uint8), small_codes("f8" + kind, x))
    assert np.array_equal(halves.view(np.float16).astype(np.float32), small_values("f8" + kind, codes.view(np.uint8)))


@pytest.mark.parametrize(("a", "b"), [("e4m3", "e4m3"), ("e5m2", "e4m3")])
def test_8_bit_matmuls_match_numpy(nvrtc, a, b):
    draw = np.random.default_rng(1)
    x = small_codes("f8" + a, draw.standard_normal((16, 32)).astype(np.float32))
    y = small_codes("f8" + b, draw.standard_normal((8, 32)).astype(np.float32))
    d = np.zeros((16, 8), np.float32)
    module = parse(compile_source(beside(__file__, "product.cu").replace(".A.B.", f".{a}.{b}."), 89).ptx)
    buffers = {"a": x.reshape(-1), "b": y.reshape(-1), "d": d.reshape(-1)}
    counts = emulate(module, KernelLaunch("product", (1,), (32,), ["a", "b", "d"], buffers, 0, {}, {}))
    expected = small_values("f8" + a, x).astype(np.float64) @ small_values("f8" + b, y).astype(np.float64).T + 0.5
    assert np.array_equal(buffers["d"].reshape(16, 8), expected.astype(np.float32))
    assert counts["mma.f16"] == 16 * 8 * 32  # tensor cores run 8-bit operations at twice the 16-bit rate


RNG = np.random.default_rng(7)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def numbers(kind: str, codes: np.ndarray) -> np.ndarray:
    if kind == "e2m1":
        return E2M1[codes & 7] * np.where(codes > 7, -1, 1)
    if kind == "e2m3":
        exponent, mantissa = (codes >> 3 & 3).astype(int), codes & 7
        return np.where(exponent == 0, mantissa / 8, (8 + mantissa) * 2.0 ** (exponent - 4)) * np.where(
            codes > 31, -1, 1
        )
    return small_values("f8" + kind, codes).astype(np.float64)


def codes_of(kind: str, shape: tuple[int, int]) -> np.ndarray:
    top = {"e2m1": 16, "e2m3": 64}.get(kind, 112)
    return RNG.integers(0, top, shape, dtype=np.uint8)


def words(kind: str, codes: np.ndarray, rows_high: int) -> np.ndarray:
    """Return a warp's registers with A (`rows_high` 2) or B (`rows_high` 1): array of shape (32, registers)."""
    per = 8 if codes.shape[1] == 64 else 4
    count = codes.size // 32 // per
    out = np.zeros((32, count), np.uint32)
    for lane in range(32):
        for r in range(count):
            row = lane // 4 + 8 * (r % rows_high)
            for e in range(per):
                code = int(codes[row, r // rows_high * 4 * per + lane % 4 * per + e])
                out[lane, r] |= (code << 2 if kind == "e2m1" and per == 4 else code) << e * (32 // per)
    return out


@pytest.mark.parametrize(("kind", "a", "b", "scale", "factors"), [
    ("f8f6f4", "e4m3", "e5m2", "", 0), ("f8f6f4", "e2m1", "e2m3", "", 0), ("mxf8f6f4", "e5m2", "e2m1", "ue8m0", 1),
    ("mxf4", "e2m1", "e2m1", "ue8m0", 2), ("mxf4nvf4", "e2m1", "e2m1", "ue4m3", 4),
])  # fmt: skip
def test_scaled_narrow_products_match_numpy(kind, a, b, scale, factors):
    depth = 64 if "mxf4" in kind else 32
    left, right = codes_of(a, (16, depth)), codes_of(b, (8, depth))
    scales = RNG.integers(0x30, 0x48, (2, 16, 4), dtype=np.uint8) if scale == "ue4m3" else RNG.integers(
        125, 130, (2, 16, 4), dtype=np.uint8)  # fmt: skip
    held = np.zeros((32, 2), np.uint32)
    byte, thread_a, thread_b = {0: (0, 0, 0), 1: (3, 1, 2), 2: (2, 0, 3), 4: (0, 1, 1)}[factors]
    for lane in range(32):
        for i in range(2):
            if lane % 4 == 2 * thread_a + i:
                held[lane, 0] = scales[0].view(np.uint32)[lane // 4 + 8 * i, 0]
        if lane % 4 == thread_b:
            held[lane, 1] = scales[1].view(np.uint32)[lane // 4, 0]
    x = np.hstack([words(a, left, 2), words(b, right, 1), held])
    out = np.zeros((32, 4), np.float32)
    block = f".block_scale.scale_vec::{factors}X" if factors else ""
    more = f", %r7, {{{byte}, {thread_a}}}, %r8, {{{byte}, {thread_b}}}" if factors else ""
    body = (
        "mov.u32 %r50, %tid.x; ld.param.u64 %rd0, [x]; ld.param.u64 %rd1, [o]; mul.wide.u32 %rd2, %r50, 32;"
        "mul.wide.u32 %rd3, %r50, 16; add.u64 %rd0, %rd0, %rd2; add.u64 %rd1, %rd1, %rd3;"
        + "".join(f"ld.global.b32 %r{i + 1}, [%rd0+{4 * i}];" for i in range(8))
        + "".join(f"mov.f32 %f{i}, 0f3F800000;" for i in range(4))
        + f"mma.sync.aligned.m16n8k{depth}.row.col.kind::{kind}{block}.f32.{a}.{b}.f32{'.' * bool(scale)}{scale}"
        "{%f0, %f1, %f2, %f3}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f0, %f1, %f2, %f3}" + more + ";"
        + "".join(f"st.global.f32 [%rd1+{4 * i}], %f{i};" for i in range(4))
    )  # fmt: skip
    counts = run(body, "u64 x, u64 o", ["x", "o"], {"x": x, "o": out})
    d = np.zeros((16, 8))
    for lane in range(32):
        for i in range(4):
            d[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] = out[lane, i]
    values = [numbers(a, left), numbers(b, right)]
    if factors:
        for i in range(2):
            codes = scales[i, : len(values[i]), byte : byte + factors]
            factor = small_values("f8e4m3", codes) if scale == "ue4m3" else np.exp2(codes.astype(float) - 127)
            values[i] = values[i] * np.repeat(factor, depth // factors, axis=1)
    assert np.allclose(d, values[0] @ values[1].T + 1, rtol=1e-6)
    assert counts["mma.f16"] == 2 * 16 * 8 * depth // (4 if depth == 64 else 2)
