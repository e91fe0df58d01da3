"""Test 8-bit floating-point numbers: every code, every rounding, and tensor-core products."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.compile import compile_source
from kernrec.ptx import KernelLaunch, emulate, parse
from kernrec.util.small_floats import small_codes, small_values

KINDS = ("e4m3", "e5m2")
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
SMALLEST = {"e4m3": 2.0**-9, "e5m2": 2.0**-16}
CODES = np.arange(256, dtype=np.uint8)

PRODUCT = """
extern "C" __global__ void product(const unsigned* a, const unsigned* b, float* d) {
    unsigned x[4], y[2]; float z[4];
    int g = threadIdx.x / 4, t = threadIdx.x % 4;
    for (int r = 0; r < 4; ++r) x[r] = a[(g + 8 * (r % 2)) * 8 + t + 4 * (r / 2)];
    for (int r = 0; r < 2; ++r) y[r] = b[g * 8 + t + 4 * r];
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.A.B.f32"
        " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(z[0]), "=f"(z[1]), "=f"(z[2]), "=f"(z[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "f"(0.5f));
    for (int r = 0; r < 4; ++r) d[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2] = z[r];
}
"""
CONVERT = """
extern "C" __global__ void convert(const float* x, unsigned short* codes, unsigned* halves) {
    unsigned short pair; unsigned half;
    asm("cvt.rn.satfinite.Kx2.f32 %0, %1, %2;" : "=h"(pair) : "f"(x[2 * threadIdx.x + 1]), "f"(x[2 * threadIdx.x]));
    asm("cvt.rn.f16x2.Kx2 %0, %1;" : "=r"(half) : "h"(pair));
    codes[threadIdx.x] = pair; halves[threadIdx.x] = half;
}
"""


@pytest.mark.parametrize("kind", KINDS)
def test_every_fp8_code_converts_back(kind):
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


def test_nan_stays_nan():
    for kind in KINDS:
        assert np.isnan(small_values("f8" + kind, small_codes("f8" + kind, np.array([np.nan], np.float32))))[0]


@pytest.mark.parametrize("kind", KINDS)
def test_second_of_a_converted_pair_is_in_the_lower_byte(nvrtc, kind):
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32) * 100
    codes, halves = np.zeros(32, np.uint16), np.zeros(32, np.uint32)
    module = parse(compile_source(CONVERT.replace("K", kind), 89).ptx)
    launch = KernelLaunch("convert", (1,), (32,), ["x", "c", "h"], {"x": x, "c": codes, "h": halves}, 0, {}, {})
    emulate(module, launch)
    assert np.array_equal(codes.view(np.uint8), small_codes("f8" + kind, x))
    assert np.array_equal(halves.view(np.float16).astype(np.float32), small_values("f8" + kind, codes.view(np.uint8)))


@pytest.mark.parametrize(("a", "b"), [("e4m3", "e4m3"), ("e5m2", "e4m3")])
def test_8_bit_products_match_numpy(nvrtc, a, b):
    draw = np.random.default_rng(1)
    x = small_codes("f8" + a, draw.standard_normal((16, 32)).astype(np.float32))
    y = small_codes("f8" + b, draw.standard_normal((8, 32)).astype(np.float32))
    d = np.zeros((16, 8), np.float32)
    module = parse(compile_source(PRODUCT.replace(".A.B.", f".{a}.{b}."), 89).ptx)
    buffers = {"a": x.reshape(-1), "b": y.reshape(-1), "d": d.reshape(-1)}
    counts = emulate(module, KernelLaunch("product", (1,), (32,), ["a", "b", "d"], buffers, 0, {}, {}))
    expected = small_values("f8" + a, x).astype(np.float64) @ small_values("f8" + b, y).astype(np.float64).T + 0.5
    assert np.array_equal(buffers["d"].reshape(16, 8), expected.astype(np.float32))
    assert counts["mma.f16"] == 16 * 8 * 32  # with half of the operations, half of the time
