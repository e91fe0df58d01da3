"""Test that `wmma` matches NumPy for every shape, type and layout, and costs as much as `mma.sync`."""

from typing import Any

import numpy as np
import pytest

from kernrec.ptx import EmulationError, KernelLaunch, emulate, parse
from tests.helpers.narrow_floats import bf16_bits, bf16_values, tf32_bits
from tests.helpers.ptx_text import cuda

WIDE = ((16, 16, 16), (32, 8, 16), (8, 32, 16))


def pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Pack rows of small integers into bytes, lowest bits first."""
    digits = (values.astype(np.int64)[..., None] >> np.arange(bits)) & 1
    return np.packbits(digits.astype(np.uint8).reshape(len(values), -1), axis=1, bitorder="little")


def draw(kind: str, shape: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a matrix; return its numbers and its row-major memory contents."""
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


def run(
    m: int, n: int, k: int, types: tuple[str, str, str, str], layouts: str, suffix: str = ""
) -> tuple[Any, Any, Any]:
    """Return D, NumPy's A B + C, and the counts; `layouts` holds `r` or `c` for a, b, c and d."""
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
    result, numbers, counts = run(*shape, types, layouts)
    expected = numbers["a"] @ numbers["b"] + numbers["c"]
    tolerance = 1e-2 if types[0] == "f16" else 1e-5
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance, atol=tolerance)
    m, n, k = shape
    assert sum(value for name, value in counts.items() if name.startswith("mma.")) == 2 * m * n * k


@pytest.mark.parametrize("kind", ["s4", "u4"])
def test_4_bit_integers_multiply(kind):
    result, numbers, counts = run(8, 8, 32, ("s32", kind, kind, "s32"), "rcrr")
    np.testing.assert_array_equal(result, numbers["a"] @ numbers["b"] + numbers["c"])
    assert counts["mma.i8"] == 8 * 8 * 32  # with half of the operations, half of the time


@pytest.mark.parametrize(("operation", "pairs"), [("xor", np.not_equal), ("and", np.logical_and)])
def test_bits_are_combined_and_counted(operation, pairs):
    result, numbers, _ = run(8, 8, 128, ("s32", "b1", "b1", "s32"), "rcrr", f".{operation}.popc")
    counted = pairs(numbers["a"][:, :, None], numbers["b"][None]).sum(axis=1)
    np.testing.assert_array_equal(result, counted + numbers["c"])


SOURCE = """
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const half* a, const half* b, float* c, int n) {
    int row = blockIdx.y * 16, column = blockIdx.x * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> y;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < n; k += 16) {
        wmma::load_matrix_sync(x, a + row * n + k, n);
        wmma::load_matrix_sync(y, b + column * n + k, n);
        wmma::mma_sync(sum, x, y, sum);
    }
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] = fmaxf(2.0f * sum.x[i], 0.0f);
    wmma::store_matrix_sync(c + row * n + column, sum, n, wmma::mem_row_major);
}
"""


def test_wmma_api_kernel_computes_a_product_with_an_epilogue():
    n = 64
    random = np.random.default_rng(1)
    a, b = (random.standard_normal((n, n)).astype(np.float16) for _ in range(2))
    c = np.zeros((n, n), np.float32)
    counts = emulate(
        cuda(SOURCE), KernelLaunch("k", (4, 4), (32,), ["a", "b", "c", np.int32(n)], {"a": a, "b": b, "c": c})
    )
    expected = np.maximum(2 * (a.astype(np.float64) @ b.T.astype(np.float64)), 0)
    np.testing.assert_allclose(c, expected, rtol=1e-3, atol=1e-3)
    assert counts["mma.f16"] == 2 * n**3
    # Each 16 x 16 tile takes two machine instructions of 16 x 8 x 16 (`mma.sync.m16n8k16`).
    assert counts["issue.mma"] == 2 * (n // 16) ** 3
    # A row of 16 halves of A fills a sector; each tile's four blocks along the columns read the sector once.
    assert counts["global.a.read_bytes"] == 4 * a.nbytes


def test_unknown_forms_are_refused():
    for types, shape in (
        (("f32", "bf16", "bf16", "f16"), (16, 16, 16)),
        (("f32", "tf32", "tf32", "f32"), (16, 16, 16)),
    ):
        with pytest.raises(EmulationError, match="wmma"):
            run(*shape, types, "rcrr")
