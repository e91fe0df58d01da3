"""Conversions of the engine against the NumPy functions of the emulator, on random operands and edge values."""

from types import SimpleNamespace

import numpy as np
import pytest

from kernrec.ptx.execution.engine import load
from kernrec.ptx.instructions.convert import _cvt
from kernrec.ptx.ir.operand import Register
from kernrec.ptx.state.types import DTYPES

engine = load()
pytestmark = pytest.mark.skipif(engine is None, reason="the engine is not compiled")

_INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
_HALVES = ("f16", "bf16", "f32", "f64")
_WHOLE = ("rni", "rzi", "rmi", "rpi")
_MODES = ("rn", "rz", "rm", "rp")

_FORMS = [
    *(f"{mode}.{to}.{source}" for mode in _MODES for to in _HALVES for source in (*_INTEGERS, *_HALVES)),
    *(f"{mode}.{to}.{source}" for mode in _WHOLE for to in _INTEGERS for source in _HALVES),
    *(f"{mode}.{kind}.{kind}" for mode in _WHOLE for kind in ("f16", "f32", "f64")),
    *(f"{mark}{to}.{source}" for mark in ("", "sat.") for to in _INTEGERS for source in _INTEGERS if to != source),
    *(f"{mode}.sat.{to}.{source}" for mode in _MODES for to in ("f16", "f32") for source in ("s32", "f32", "f64")),
    *(f"{mode}.ftz.f32.{source}" for mode in _MODES for source in ("f32", "f64")),
    *("rni.ftz.f32.f32", "rzi.ftz.s32.f32", "rn.ftz.f16.f32", "rmi.ftz.s32.f32", "ftz.f32.f16", "f32.bf16", "f64.f32"),
    *(f"{mode}.relu.{to}.f32" for mode in ("rn", "rz") for to in ("f16", "bf16")),
    *(f"{mode}.tf32.f32" for mode in ("rn", "rna", "rz", "rn.relu", "rz.relu")),
]
_SPECIAL = {
    "f16": (0x7C00, 0x0200),
    "bf16": (0x7F80, 0x0040),
    "f32": (0x7F800000, 1 << 22),
    "f64": (0x7FF << 52, 1 << 51),
}
"""By type: the bits of infinity, and the bit that makes a NaN quiet."""
_PAIRS = [
    *(f"{mode}{relu}.{to}.f32" for mode in ("rn", "rz") for relu in ("", ".relu") for to in ("f16x2", "bf16x2")),
    *(f"rn.satfinite{relu}.{to}.f32" for relu in ("", ".relu") for to in ("e4m3x2", "e5m2x2")),
]
_PACKED = [
    *(f"rn.satfinite{relu}.{to}.f16x2" for relu in ("", ".relu") for to in ("e4m3x2", "e5m2x2")),
    *(f"rn{relu}.f16x2.{source}" for relu in ("", ".relu") for source in ("e4m3x2", "e5m2x2")),
]


def _operands(kind: str, generator: np.random.Generator) -> np.ndarray:
    """Bits of a type: random ones, numbers near every rounding boundary, zeros, infinities and quiet NaNs."""
    bits = 8 * DTYPES[kind].itemsize
    random = generator.integers(0, 1 << min(bits, 63), 3000, np.uint64) << np.uint64(bits == 64)
    small = np.arange(0, 70, dtype=np.uint64)
    edges = np.concatenate([small, np.uint64((1 << bits) - 1) - small, np.uint64(1 << bits - 1) + small])
    parts = [random, edges]
    if kind == "bf16" or kind[0] == "f":
        dtype = np.dtype("f4") if kind == "bf16" else DTYPES[kind]
        powers = 2.0 ** np.arange(-30, 40)[:, None] * (1 + np.arange(-4, 5) / 2048)
        numbers = np.concatenate(
            [powers.ravel(), np.arange(-70, 70) / 2, [65504, 65519.99, 65520, 448, 463.9, 464, 1e38, 3.5e38]]
        )
        with np.errstate(over="ignore"):
            values = np.concatenate([numbers, -numbers]).astype(dtype).view(f"u{dtype.itemsize}").astype(np.uint64)
        parts.append(values >> np.uint64(16) if kind == "bf16" else values)
    operands = np.concatenate(parts) & np.uint64((1 << bits) - 1)
    # A signaling NaN does not survive: the engine makes it quiet, as a GPU does.
    infinity, quiet = _SPECIAL.get(kind, (1 << 63, 0))
    is_nan = (operands & np.uint64((1 << bits - 1) - 1)) > np.uint64(infinity)
    return np.where(is_nan, operands | np.uint64(quiet), operands)


def _emulated(modifiers: list[str], *operands: np.ndarray) -> np.ndarray:
    names = [Register(f"%r{i}") for i in range(len(operands) + 1)]
    form = _cvt(SimpleNamespace(opcode="cvt", modifiers=tuple(modifiers), operands=tuple(names)))
    sources = [
        bits.astype(f"u{DTYPES[kind].itemsize}").view(DTYPES[kind])
        for bits, kind in zip(operands, form.source_types, strict=True)
    ]
    out = np.zeros(len(operands[0]), DTYPES[form.type])
    with np.errstate(all="ignore"):
        form.function(*sources, out)
    return out.view(f"u{out.itemsize}").astype(np.uint64)


def _check(modifiers: list[str], run: object, *operands: np.ndarray) -> None:
    result = np.zeros(len(operands[0]), np.uint64)
    run(modifiers, *operands, result)
    expected = _emulated(modifiers, *operands)
    wrong = np.flatnonzero(result != expected)
    shown = [(*(hex(o[i]) for o in operands), hex(result[i]), hex(expected[i])) for i in wrong[:5]]
    assert not len(wrong), f"{len(wrong)} differ; operands, result, expected: {shown}"


@pytest.mark.parametrize("form", _FORMS)
def test_convert_equals_the_emulator(form: str) -> None:
    modifiers = form.split(".")
    _check(modifiers, engine.convert, _operands(modifiers[-1], np.random.default_rng(1)))


@pytest.mark.parametrize("form", _PAIRS)
def test_convert_pair_equals_the_emulator(form: str) -> None:
    generator = np.random.default_rng(2)
    _check(
        form.split("."), engine.convert_pair, *(generator.permutation(_operands("f32", generator)) for _ in range(2))
    )


@pytest.mark.parametrize("form", _PACKED)
def test_convert_packed_equals_the_emulator(form: str) -> None:
    modifiers = form.split(".")
    if modifiers[-1] == "f16x2":
        generator = np.random.default_rng(3)
        low, high = (generator.permutation(_operands("f16", generator)) for _ in range(2))
        pairs = low | high << np.uint64(16)
    else:
        pairs = np.arange(1 << 16, dtype=np.uint64)
    _check(modifiers, engine.convert_packed, pairs)


@pytest.mark.parametrize("form", ["rn.f16.e4m3", "rn.tf32.f64", "f32.tf32", "rn.bf16x2.f16", "s32.f32", "rx.f32.f64"])
def test_convert_refuses_unknown_forms(form: str) -> None:
    with pytest.raises(NotImplementedError):
        engine.convert(form.split("."), np.zeros(1, np.uint64), np.zeros(1, np.uint64))
