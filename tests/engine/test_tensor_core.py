"""Tensor cores of the engine against the NumPy functions of the emulator, on random operands."""

import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from kernrec.ptx.instructions import fragments
from kernrec.ptx.instructions.fragments import ELEMENT_TYPES
from kernrec.ptx.instructions.mma_scaled import ScaledProduct, _kind, _Scale

engine = pytest.importorskip("kernrec._engine", reason="the native engine is not built")

_EIGHT_BIT_FLOATS = [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e5m2")]
_INTEGERS = {
    "8": ("m8n8k16", "m16n8k16", "m16n8k32"),
    "4": ("m8n8k32", "m16n8k32", "m16n8k64"),
}
_SIGNS = [("s", "s"), ("u", "s"), ("u", "u")]
_BIT_SHAPES = ("m8n8k128", "m16n8k128", "m16n8k256")
_MMA = [
    *(f"m16n8k{k}.row.col.{d}.f16.f16.{c}" for k in (8, 16) for c in ("f16", "f32") for d in ("f16", "f32")),
    *(f"m16n8k{k}.row.col.f32.bf16.bf16.f32" for k in (8, 16)),
    *(f"m16n8k{k}.row.col.f32.tf32.tf32.f32" for k in (4, 8)),
    *(f"m16n8k{k}.row.col.{c}.{a}.{b}.{c}" for k in (16, 32) for a, b in _EIGHT_BIT_FLOATS for c in ("f16", "f32")),
    *(
        f"{shape}.row.col{saturates}.s32.{a}{bits}.{b}{bits}.s32"
        for bits, shapes in _INTEGERS.items()
        for shape in shapes
        for saturates in ("", ".satfinite")
        for a, b in _SIGNS
    ),
    *(f"{shape}.row.col.s32.b1.b1.s32.{how}.popc" for shape in _BIT_SHAPES for how in ("and", "xor")),
]
_MMA_F64 = ["m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"]
_NARROW = [("e4m3", "e2m1"), ("e2m3", "e3m2"), ("e2m1", "e5m2")]
_SCALED = [
    *(f"m16n8k32.row.col.kind.f8f6f4.{d}.{a}.{b}.{d}" for d in ("f16", "f32") for a, b in _NARROW),
    *(f"m16n8k32.row.col.kind.mxf8f6f4.block_scale.scale_vec.1X.f32.{a}.{b}.f32.ue8m0" for a, b in _NARROW),
    "m16n8k64.row.col.kind.mxf4nvf4.block_scale.scale_vec.2X.f32.e2m1.e2m1.f32.ue8m0",
    "m16n8k64.row.col.kind.mxf4nvf4.block_scale.scale_vec.4X.f32.e2m1.e2m1.f32.ue4m3",
    "m16n8k64.row.col.kind.mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0",
]
_WIDE = ("m16n16k16", "m32n8k16", "m8n32k16")
_WMMA = [
    *(
        f"mma.sync.aligned.row.col.{shape}.{types}"
        for shape in _WIDE
        for types in ("f32.f32", "f16.f16", "f32.f16", "s32.s8.s8.s32.satfinite", "s32.u8.u8.s32", "f32.bf16.bf16.f32")
    ),
    "mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32",
    "mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32",
    "mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32",
]
_SPECIAL = {"f16": (0x7C00, 16), "bf16": (0x7F80, 16), "f32": (0x7F800000, 32), "tf32": (0x7F800000, 32)}


def _registers(kind: str, count: int, generator: np.random.Generator, special: bool = False) -> np.ndarray:
    """Registers of random numbers: of floats some are small, some large, and with `special` some infinite."""
    words = generator.integers(0, 1 << 32, (count, 32), np.uint64).astype(np.uint32)
    if kind in ("f32", "tf32"):
        words = (generator.standard_normal((count, 32)) * 2.0 ** generator.integers(-9, 9, (count, 32))).astype(
            np.float32
        )
        words = words.view(np.uint32)
    elif kind in ("f16", "bf16"):
        values = generator.standard_normal((count, 64)) * 2.0 ** generator.integers(-12, 5, (count, 64))
        halves = values.astype(np.float16).view(np.uint16)
        if kind == "bf16":
            halves = (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        if special:
            halves[generator.random(halves.shape) < 0.02] = _SPECIAL[kind][0]
        words = halves.view(np.uint32)
    elif kind in ("e4m3", "e5m2") and not special:
        codes = words.view(np.uint8)
        codes[codes & 0x7F >= (0x7C if kind == "e5m2" else 0x7F)] = 0x38
    return np.ascontiguousarray(words)


def _check_equal(result: np.ndarray, expected: np.ndarray, kind: str) -> None:
    """Compare bits; a NaN may be any NaN."""
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}.get(kind)
    same = result == expected
    if dtype is not None:
        unsigned = f"u{np.dtype(dtype).itemsize}"
        same = result.view(unsigned) == expected.view(unsigned)
        same |= np.isnan(result.view(dtype)) & np.isnan(expected.view(dtype))
    assert same.all(), f"{np.count_nonzero(~same)} of {same.size} differ"


def _product(a: np.ndarray, b: np.ndarray, c: np.ndarray, types: list[str], m: int, form: str) -> np.ndarray:
    """D of the emulator from registers (registers, 32)."""
    width = ELEMENT_TYPES[types[0]].width
    d_count = m * 8 // (32 * ELEMENT_TYPES[types[0]].per_register)
    file = np.concatenate([a, b, c, np.zeros((d_count, 32), a.dtype)])
    bounds = np.cumsum([0, len(a), len(b), len(c), d_count])
    rows = [tuple(range(low, high)) for low, high in pairwise(bounds)]

    def values(i: int, kind: str) -> np.ndarray:
        return fragments.register_values(file, [rows[i]], kind, slice(None))

    xor = "xor" in form
    signs = (lambda x: 1 - 2 * x.astype(np.int8)) if xor else (lambda x: x)
    first = fragments.a_matrices(signs(values(0, types[1])), m)[:, 0]
    second = fragments.b_matrices(signs(values(1, types[2])))[:, 0]
    with np.errstate(all="ignore"):
        product = np.matmul(first, second.swapaxes(1, 2))
        if xor:
            product = (first.shape[2] - product) / 2
        product = product[None] + fragments.c_matrices(values(2, types[3]))
        total = fragments.saturated(product) if "satfinite" in form else product
        fragments.write_d(file, [rows[3]], slice(None), total, types[0])
    assert width == 8 * file.itemsize
    return file[rows[3][0] :]


@pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
@pytest.mark.parametrize("form", _MMA)
def test_mma_equals_the_emulator(form: str, special: bool) -> None:
    generator = np.random.default_rng(4)
    types = re.findall(r"\.((?:[a-z]+\d+)(?:m\d)?)(?=\.|$)", form.split("col", 1)[1].replace(".satfinite", ""))
    m, k = (int(re.search(rf"{letter}(\d+)", form).group(1)) for letter in "mk")
    counts = [m * k, 8 * k, m * 8]
    for _ in range(20):
        a, b, c = (
            _registers(kind, count // (32 * ELEMENT_TYPES[kind].per_register), generator, special)
            for kind, count in zip(types[1:4], counts, strict=True)
        )
        d = np.zeros((m * 8 // (32 * ELEMENT_TYPES[types[0]].per_register), 32), np.uint32)
        engine.mma(["sync", "aligned", *form.split(".")], a, b, c, d)
        _check_equal(d, _product(a, b, c, types, m, form), types[0])


@pytest.mark.parametrize("shape", _MMA_F64)
def test_mma_f64_equals_the_emulator(shape: str) -> None:
    """Numbers of few bits: NumPy's sums depend on the machine where products are inexact."""
    generator = np.random.default_rng(5)
    m, k = (int(re.search(rf"{letter}(\d+)", shape).group(1)) for letter in "mk")
    a, b, c = (
        generator.integers(-9999, 9999, (n // 32, 32)).astype(np.float64).view(np.uint64) for n in (m * k, 8 * k, 8 * m)
    )
    d = np.zeros((m * 8 // 32, 32), np.uint64)
    engine.mma_f64(["sync", "aligned", *f"{shape}.row.col.f64.f64.f64.f64".split(".")], a, b, c, d)
    _check_equal(d, _product(a, b, c, ["f64"] * 4, m, ""), "f64")


@pytest.mark.parametrize("form", _SCALED)
def test_scaled_mma_equals_the_emulator(form: str) -> None:
    generator = np.random.default_rng(6)
    modifiers = ["sync", "aligned", *form.split(".")]
    kind = _kind(SimpleNamespace(modifiers=tuple(modifiers)))
    for _ in range(20):
        a, b = (_registers(name, n, generator) for name, n in ((kind.a, 4), (kind.b, 2)))
        c = _registers(kind.c, 2 if kind.c == "f16" else 4, generator)
        d = np.zeros((2 if kind.d == "f16" else 4, 32), np.uint32)
        scales = generator.integers(0x30, 0x50, (2, 128)).astype(np.uint8)
        if kind.scale == "ue8m0":
            scales += 0x3F
        scales = scales.view(np.uint32)
        per_word = 4 // max(kind.factors, 1)
        selectors = [int(x) for x in (generator.integers(per_word) * kind.factors, generator.integers(2)) for _ in (0,)]
        selectors += [int(generator.integers(per_word) * kind.factors), int(generator.integers(4))]
        engine.scaled_mma(modifiers, a, b, c, d, scales, selectors)
        file = np.concatenate([a, b, c, np.zeros_like(d)])
        product = object.__new__(ScaledProduct)
        product.kind = kind
        bounds = np.cumsum([0, 4, 2, len(c), len(d)])
        product.rows = {
            x: tuple(range(low, high)) for x, low, high in zip("abcd", bounds[:-1], bounds[1:], strict=True)
        }
        row = lambda value: np.full(32, value, np.uint16)  # noqa: E731
        product.scales = [_Scale(scales[i], row(selectors[2 * i]), row(selectors[2 * i + 1])) for i in range(2)]
        product.scales = product.scales[: 2 * (kind.factors > 0)]
        product.ins = None
        product.decoder = SimpleNamespace(
            registers=SimpleNamespace(files={32: file}), memory=SimpleNamespace(counters=SimpleNamespace(counts=None))
        )
        product.running_lanes = lambda: None
        product()
        _check_equal(d, file[bounds[3] :], kind.d)


@pytest.mark.parametrize("form", _WMMA)
def test_wmma_mma_multiplies_each_tile_as_mma_does(form: str) -> None:
    generator = np.random.default_rng(7)
    modifiers = form.split(".")
    shape = next(m for m in modifiers if re.fullmatch(r"m\d+n\d+k\d+", m))
    m, n, k = (int(x) for x in re.findall(r"\d+", shape))
    types = [x for x in modifiers[modifiers.index(shape) + 1 :] if x != "satfinite"]
    d, a, b, c = types if len(types) == 4 else (types[0], "f16", "f16", types[1])
    per = lambda kind: 32 * ELEMENT_TYPES[kind].per_register  # noqa: E731
    sizes = m * k // per(a), k * n // per(b), m * n // per(c), m * n // per(d)
    ra, rb, rc = (_registers(kind, size, generator) for kind, size in zip((a, b, c), sizes, strict=False))
    expected, tiles = [], n // 8
    for i in range(tiles):
        part = [x[i * len(x) // tiles : (i + 1) * len(x) // tiles] for x in (rb, rc)]
        expected.append(_product(ra, *part, [d, a, b, c], m, form))
    if a == "f16":  # fragments of A and B have eight registers, and repeat
        ra, rb = (np.ascontiguousarray(np.tile(x, (8 // len(x), 1))) for x in (ra, rb))
    result = np.zeros((sizes[3], 32), np.uint32)
    engine.wmma_mma(modifiers, ra, rb, rc, result)
    _check_equal(result, np.concatenate(expected), d)


@pytest.mark.parametrize(
    "form",
    ["m16n8k16.row.col.f32.f16.bf16.f32", "m16n8k4.row.col.f32.f16.f16.f32", "m16n8k16.col.row.f32.f16.f16.f32",
     "m16n8k8.row.col.f16.bf16.bf16.f16", "m16n8k128.row.col.s32.b1.b1.s32", "m16n8k32.row.col.f32.f99.f16.f32"],
)  # fmt: skip
def test_mma_refuses_unknown_forms(form: str) -> None:
    empty = np.zeros((8, 32), np.uint32)
    with pytest.raises(NotImplementedError):
        engine.mma(["sync", "aligned", *form.split(".")], empty, empty, empty, empty)
