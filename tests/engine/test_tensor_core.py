"""Tensor cores of the engine against the NumPy functions of the emulator, on random operands."""

import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from kernrec.ptx.execution.engine import load
from kernrec.ptx.instructions import fragments, tcgen05_moves
from kernrec.ptx.instructions.fragments import ELEMENT_TYPES
from kernrec.ptx.instructions.instruction_descriptors import (
    InstructionDescriptor,
    ScaleFactors,
    instruction_descriptor,
)
from kernrec.ptx.instructions.mma_scaled import ScaledProduct, _kind, _Scale
from kernrec.ptx.instructions.tcgen05_mma import Multiplication, _Issue
from kernrec.ptx.ir.operand import Immediate
from kernrec.ptx.state import matrix_descriptors
from kernrec.ptx.state.access_cost import Counts
from kernrec.ptx.state.matrix_descriptors import DescriptorError
from kernrec.ptx.state.tensor_memory import Cells, TensorMemory

engine = load()
pytestmark = pytest.mark.skipif(engine is None, reason="the engine is not compiled")

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


# Matrices in shared memory


def _shared(generator: np.random.Generator, size: int, kind: str = "f16") -> np.ndarray:
    """Shared memory full of numbers of a type."""
    count = size // 128
    return np.ascontiguousarray(_registers(kind, count, generator).view(np.uint8).reshape(-1))


def _descriptor(start: int, leading: int, stride: int, base: int, mode: int, is_tcgen05: bool) -> int:
    bits = start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | base << 49
    return bits | (mode << 61 | 1 << 46 if is_tcgen05 else mode << 62)


@pytest.mark.parametrize("is_tcgen05", [False, True], ids=["wgmma", "tcgen05"])
def test_read_tile_reads_the_addresses_of_the_emulator(is_tcgen05: bool) -> None:
    generator = np.random.default_rng(8)
    data = generator.integers(0, 256, 1 << 16).astype(np.uint8)
    memory = engine.SharedArray(data, 1)
    decode = matrix_descriptors.tcgen05_descriptor if is_tcgen05 else matrix_descriptors.wgmma_descriptor
    for _ in range(200):
        mode = int(generator.choice([0, 1, 2, 4, 6] if is_tcgen05 else [0, 1, 2, 3]))
        start, leading, stride = (int(x) * 16 for x in generator.integers(0, [512, 64, 64]))
        bits = _descriptor(start, leading, stride, int(generator.integers(8)) if mode else 0, mode, is_tcgen05)
        size = int(generator.choice([1, 2, 4]))
        shape = [int(generator.choice([8, 16, 64, 128])), 32 // size, size]
        mn_major = bool(generator.integers(2))
        tile, addresses = engine.read_tile(memory, is_tcgen05, bits, shape, mn_major)
        expected = matrix_descriptors.tile_addresses(decode(bits), *shape, mn_major)
        assert np.array_equal(addresses, expected.ravel())
        bytes_of_tile = data[expected.ravel()[:, None] + np.arange(size)].ravel()
        assert np.array_equal(np.array(tile, np.uint8), bytes_of_tile)


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        (1 << 14, "bits 14 to 15 of matrix descriptor 0x0000000000004000 are reserved and must be 0"),
        (1 << 49, "matrix descriptor 0x0002000000000000 has a base offset and no swizzling"),
        (0x3FFF, "describes 8 rows up to byte 262255 of shared memory, of which the block has 1024 bytes"),
    ],
)
def test_read_tile_refuses_bad_descriptors(bits: int, text: str) -> None:
    memory = engine.SharedArray(np.zeros(1024, np.uint8), 1)
    with pytest.raises(RuntimeError, match=text):
        engine.read_tile(memory, False, bits, [8, 16, 2], False)


_WGMMA = [
    "m64n64k16.f32.f16.f16", "m64n24k16.f16.f16.f16", "m64n256k16.f32.bf16.bf16", "m64n8k8.f32.tf32.tf32",
    "m64n32k32.f32.e4m3.e5m2", "m64n16k32.f16.e5m2.e5m2", "m64n32k32.satfinite.s32.s8.u8",
    "m64n8k256.s32.b1.b1.and.popc",
]  # fmt: skip


@pytest.mark.parametrize("in_registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("form", _WGMMA)
def test_wgmma_equals_the_emulator(form: str, in_registers: bool) -> None:
    generator = np.random.default_rng(9)
    modifiers = ["mma_async", "sync", "aligned", *form.split(".")]
    n, k = (int(x) for x in re.findall(r"[nk](\d+)", form)[:2])
    d, a, b = [x for x in modifiers[4:] if x not in ("satfinite", "and", "popc")]
    element_a, element_b = ELEMENT_TYPES[a], ELEMENT_TYPES[b]
    data = _shared(generator, 1 << 16, a)
    memory = engine.SharedArray(data, 1)
    transposes = [a in ("f16", "bf16") and bool(generator.integers(2)) for _ in range(2)]
    descriptors = [_descriptor(1024 * i * 20, 2048, 512 + 512 * i, 0, 1 + i, False) for i in range(2)]
    sign, adds = int(generator.choice([1, -1])), bool(generator.integers(4))
    registers = _registers(a, 16, generator).reshape(4, 128) if in_registers else np.zeros((0, 128), np.uint32)
    rows = n // (4 if d == "f16" else 2)
    accumulators = _registers(d if d != "s32" else "s8", 4 * rows, generator).reshape(rows, 128)
    file = np.concatenate([registers, accumulators])
    engine.wgmma(
        memory, modifiers, registers, *descriptors, [*(int(t) for t in transposes), sign, int(adds)], accumulators
    )

    def tile(i: int, extent: int, element: fragments.ElementType) -> np.ndarray:
        described = matrix_descriptors.wgmma_descriptor(descriptors[i])
        index = matrix_descriptors.tile_addresses(described, extent, 32 // element.bytes, element.bytes, transposes[i])
        elements = data.view(f"u{element.bytes}")[index // element.bytes]
        return element.values(elements.view(element.dtype)).astype(np.float64)

    with np.errstate(all="ignore"):
        if in_registers:
            left = fragments.a_matrices(fragments.register_values(file, [(0, 1, 2, 3)], a, slice(None)), 16)
            left = left.reshape(64, k)
        else:
            left = tile(0, 64, element_a)
        product = np.matmul(left, tile(1, n, element_b).T) * sign
        per_tile = 2 if d == "f16" else 4
        tiles = [tuple(range(len(registers) + i, len(registers) + i + per_tile)) for i in range(0, rows, per_tile)]
        sums = product.reshape(4, 16, len(tiles), 8).transpose(2, 0, 1, 3)
        if adds:
            sums = sums + fragments.c_matrices(fragments.register_values(file, tiles, d, slice(None)))
        fragments.write_d(file, tiles, slice(None), fragments.saturated(sums) if "satfinite" in form else sums, d)
    _check_equal(accumulators, file[len(registers) :], d)
    operations = 2 * 64 * n * k
    shared_bytes = (n + (0 if in_registers else 64)) * 32
    counted = {f"{unit}.{element_a.counted}": int(operations * element_a.share) for unit in ("mma", "wgmma")}
    assert memory.counts == {**counted, "wgmma.shared_bytes": shared_bytes}


# Tensor memory


@pytest.mark.parametrize("kind", ["f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"])
def test_instruction_descriptor_equals_the_emulator(kind: str) -> None:
    generator = np.random.default_rng(10)
    scaled = kind in ("mxf8f6f4", "mxf4", "mxf4nvf4")
    understood = 0
    for trial in range(3000):
        m, n = int(generator.choice([64, 128, 256, 96])), int(generator.integers(0, 33) * 8)
        bits = (m >> 4) << 24 | (n >> 3) << 17 | int(generator.integers(8)) << 7 | int(generator.integers(8)) << 10
        bits |= int(generator.integers(4)) << 4 | int(generator.integers(16)) << 13
        if trial % 3 == 0:
            bits |= 1 << int(generator.integers(32))
        ctas = int(generator.integers(1, 3))
        modifiers = ["mma", "cta_group", str(ctas), "kind", kind, *(["block_scale"] if scaled else [])]
        try:
            expected: object = instruction_descriptor(bits, kind, ctas)
        except DescriptorError as error:
            with pytest.raises(ValueError, match=re.escape(str(error))):
                engine.instruction_descriptor(bits, modifiers)
            continue
        understood += 1
        m, n, a, b, d, a_mn, b_mn, sign, saturates, scale, first_a, first_b = engine.instruction_descriptor(
            bits, modifiers
        )
        scales = ScaleFactors(scale, (first_a, first_b)) if scaled else None
        assert InstructionDescriptor(m, n, a, b, d, (a_mn, b_mn), sign, saturates, scales) == expected
    assert understood


@pytest.mark.parametrize("shape", ["32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"])
@pytest.mark.parametrize("packed", [False, True])
def test_tensor_move_cells_equal_the_emulator(shape: str, packed: bool) -> None:
    registers = 4 * {"16x128b": 2, "16x256b": 4}.get(shape, 1)
    lane, column = tcgen05_moves.places(shape, registers, 0)
    split = 24 if shape == "16x32bx2" else 0
    column = column * (1 + packed) + np.arange(32)[:, None] // 16 * split
    cells = Cells(0, lane + 32, column + 8)
    expected = tcgen05_moves._pairs(cells) if packed else cells
    modifiers = ["ld", "sync", "aligned", shape, "x4", *(["pack", "16b"] if packed else []), "b32"]
    result = np.array(engine.tensor_move_cells(modifiers, 32 << 16 | 8, split))
    assert np.array_equal(result[:, 0], np.broadcast_to(expected.lane, expected.column.shape).ravel())
    assert np.array_equal(result[:, 1], expected.column.ravel())


def _tensor_kind(generator: np.random.Generator, kind: str) -> tuple[int, str]:
    """Bits of an instruction descriptor without extents, and the type of A."""
    types = {"f16": (0, 1), "tf32": (2,), "f8f6f4": (0, 1, 3, 4, 5), "i8": (0, 1), "mxf8f6f4": (0, 1, 3, 4, 5)}
    a, b = (int(generator.choice(types.get(kind, (1,)))) for _ in range(2))
    bits = a << 7 | b << 10 | int(generator.integers(4)) << 13
    if kind == "i8":
        bits |= 2 << 4 | int(generator.integers(2)) << 3
    elif kind in types and kind != "mxf8f6f4":
        bits |= 1 << 4 if kind == "tf32" or (a, b) != (0, 0) else int(generator.integers(2)) << 4
    return bits, "e4m3"


@pytest.mark.parametrize("a_in_tensor", [False, True], ids=["shared", "tensor"])
@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize("kind", ["f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"])
def test_tcgen05_mma_equals_the_emulator(kind: str, ctas: int, a_in_tensor: bool) -> None:
    generator = np.random.default_rng(11)
    scaled = kind in ("mxf8f6f4", "mxf4", "mxf4nvf4")
    for trial in range(4):
        data = _shared(generator, 1 << 16, {"f16": "f16", "tf32": "tf32"}.get(kind, "e4m3"))
        words = _registers("tf32" if kind in ("tf32", "i8") else "f16", 2 * 128 * 16, generator).reshape(2, 128, 512)
        if scaled:
            codes = generator.integers(0x30, 0x48, (2, 128, 64)).astype(np.uint8)
            words[:, :, :16] = codes.view(np.uint32)
        bits, _ = _tensor_kind(generator, kind)
        if kind in ("f8f6f4", "mxf8f6f4") and a_in_tensor:
            bits &= ~(7 << 7)
        m = (128 if scaled or trial % 2 else 64) * ctas
        n = int(generator.choice([16, 64, 128]))
        bits |= (m >> 4) << 24 | (n >> 3) << 17
        factors = {"mxf8f6f4": 1, "mxf4": 2, "mxf4nvf4": 4}.get(kind, 0)
        if scaled:
            bits |= int(kind != "mxf4nvf4") << 23
            bits |= 0 if factors == 4 else int(generator.integers(4 // factors) * factors) << 29
        disabled = generator.integers(0, 1 << 32, 4 * ctas, np.uint64).tolist() if trial == 3 else []
        shift, adds = (int(generator.integers(3)) if kind == "f16" else 0), trial != 1
        d_address, a_address, scale_addresses = 300, 64, (0, 4)
        tiles = [_descriptor(4096 * i, 2048, 512, 0, 4, True) for i in range(2)]
        vector = {"1X": 32, "2X": 32, "4X": 16}[f"{factors}X"] if scaled else 0
        modifiers = ["mma", "cta_group", str(ctas), "kind", kind]
        modifiers += ["block_scale", "scale_vec", f"{factors}X"] if scaled else []
        memory, tensor = engine.SharedArray(data, 2), engine.TensorMemories(2)
        old = TensorMemory(2)
        old.start_batch()
        for block in range(2):
            tensor.allocate(block, 512)
            old.allocate("", block, 512)
            tensor.put(block, np.ascontiguousarray(words[block]))
            old._cells[block] = words[block]
        used = engine.tcgen05_mma(
            memory, tensor, modifiers, bits, [d_address, a_address if a_in_tensor else tiles[0], tiles[1]],
            a_in_tensor, list(scale_addresses), disabled, adds, shift,
        )  # fmt: skip
        counts = Counts()
        shared = SimpleNamespace(views={u: data.view(f"u{u}") for u in (1, 2, 4, 8)}, size=1 << 15)
        issued: list[np.ndarray] = []
        step = object.__new__(Multiplication)
        step.place = "here"
        step.form = SimpleNamespace(
            kind=kind, ctas=ctas, vector=vector, scales=(1, 2) if scaled else (), shift=shift, disabled=()
        )
        step.masks = [np.array([word], np.uint32) for word in disabled]
        step.enable = Immediate(int(adds), "int")
        row = lambda value: (np.array([value]), 0)  # noqa: E731
        step.addresses = {"d": row(d_address), "scale_a": row(0), "scale_b": row(4)}
        step.rows = {"b": np.array([tiles[1]], np.uint64), "a": np.array([tiles[0]], np.uint64)}
        if a_in_tensor:
            step.addresses["a"] = row(a_address)
        pending = SimpleNamespace(memory=old, issue=lambda lane, operation, tile, issued=issued: issued.append(tile))
        step.decoder = SimpleNamespace(
            memory=SimpleNamespace(
                pending=SimpleNamespace(tensor=pending), shared=shared, cluster=SimpleNamespace(stride=1 << 15),
                counters=SimpleNamespace(counts=counts),
            )
        )  # fmt: skip
        with np.errstate(all="ignore"):
            step._multiply(_Issue(0, tuple(range(ctas)), instruction_descriptor(bits, kind, ctas)))
        for block in range(2):
            result = np.zeros((128, 512), np.uint32)
            tensor.get(block, result)
            says = instruction_descriptor(bits, kind, ctas)
            if says.d == "f16":  # half of a cell
                result, expected = result.astype(np.uint16), old._cells[block].astype(np.uint16)
                _check_equal(result, expected, "f16")
            else:
                _check_equal(result, np.ascontiguousarray(old._cells[block]), says.d)
        assert memory.counts == dict(counts)
        together = np.concatenate([np.array(part, np.int64) + (block << 15) for block, part in enumerate(used)])
        assert np.array_equal(np.sort(together), np.sort(issued[0]))


@pytest.mark.parametrize(
    "name",
    ["128x256b", "4x256b", "128x128b", "64x128b.warpx2.02_13", "warpx2.01_23.64x128b", "32x128b.warpx4"],
)
def test_tcgen05_cp_copies_rows_to_lanes(name: str) -> None:
    generator = np.random.default_rng(12)
    data = _shared(generator, 1 << 16)
    memory, tensor = engine.SharedArray(data, 1), engine.TensorMemories(1)
    tensor.allocate(0, 512)
    before, after = np.zeros((128, 512), np.uint32), np.zeros((128, 512), np.uint32)
    tensor.put(0, before)
    bits = _descriptor(0, 256, 512, 0, 0, True)
    engine.tcgen05_cp(memory, tensor, ["cp", "cta_group", "1", *name.split(".")], 8, bits)
    tensor.get(0, after)
    shape = next(part for part in name.split(".") if "x" in part and part[0].isdigit())
    rows, width = int(shape.split("x")[0]), 32 if "256b" in shape else 16
    index = matrix_descriptors.tile_addresses(matrix_descriptors.tcgen05_descriptor(bits), rows, width, 1)
    words = np.ascontiguousarray(data[index]).view(np.uint32)
    lanes = np.arange(rows) * (32 if rows == 4 else 1)
    if "01_23" in name:
        lanes = lanes % 32 + lanes // 32 * 64
    copies = {"02_13": (0, 64), "01_23": (0, 32), "warpx4": (0, 32, 64, 96)}
    for first in next((starts for mark, starts in copies.items() if mark in name), (0,)):
        before[lanes + first, 8 : 8 + width // 4] = words
    assert np.array_equal(after, before)


def test_tensor_memory_refuses_what_is_under_way() -> None:
    tensor = engine.TensorMemories(1)
    assert [tensor.allocate(0, 32), tensor.allocate(0, 128), tensor.allocate(0, 64)] == [0, 128, 64]
    tensor.store(0, [(0, 1)], [7])
    for act, text in (
        (lambda: tensor.load(0, [(0, 1)]), "columns 1 to 1 of tensor memory: a tcgen05.st to them was not waited for"),
        (lambda: tensor.load(0, [(0, 40)]), "columns 40 to 40 of tensor memory are not all allocated"),
        (lambda: tensor.load(0, [(128, 1)]), "lane 128 of tensor memory, which has 128"),
        (lambda: tensor.allocate(0, 48), "48 columns, where a power of two from 32 to 512 is expected"),
        (lambda: tensor.allocate(0, 512), "deadlock: 512 columns of tensor memory, of which 224 are taken"),
        (lambda: tensor.release(0, 32, 32), "32 columns at 0x00000020, where none were allocated"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            act()
    tensor.finish(0, 0, [(0, 1)])
    assert tensor.load(0, [(0, 1)]) == [7]
