"""Test fragments and scale factors of `mma.sync` with narrow and block-scaled numbers against the manual."""

import numpy as np
import pytest

from kernrec.util.small_floats import small_values
from tests.helpers.ptx_text import run

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
    """Return the registers (32, registers) of a warp's fragment of A (two halves of rows) or B (one half)."""
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
