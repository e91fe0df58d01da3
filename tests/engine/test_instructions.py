"""Each instruction computes what was recorded, on random operands, edge values and masks.

Approximations of transcendental functions depend on the C library: they are compared with NumPy.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest

from kernrec.ptx import KernelLaunch, emulate, parse
from kernrec.ptx.ir.signatures import Slot, signature
from kernrec.ptx.ir.types import BITS
from tests.engine.expected import check, digest, one_nan
from tests.helpers.narrow_floats import bf16_values

THREADS = 480
INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
WIDE = ("u32", "s32", "u64", "s64")
HALVES = ("f16", "bf16", "f32", "f64")
DIRECTIONS = ("rn", "rz", "rm", "rp")
WHOLE = ("rni", "rzi", "rmi", "rpi")
FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
TRANSCENDENTAL = {"sin": np.sin, "cos": np.cos, "ex2": np.exp2, "lg2": np.log2, "tanh": np.tanh}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def _names() -> list[str]:
    """The names of the instructions that are compared."""
    made = [
        f"{op}.{kind}" for op, kind in product(("add", "sub", "min", "max", "mul.lo", "mul.hi", "div", "rem"), INTEGERS)
    ]
    made += [f"{op}.{kind}" for op, kind in product(("neg", "abs"), ("s16", "s32", "s64"))]
    made += [f"mad.{part}.{kind}" for part, kind in product(("lo", "hi"), INTEGERS)]
    made += [f"{op}.wide.{kind}" for op, kind in product(("mul", "mad"), ("u16", "s16", "u32", "s32"))]
    made += [f"{op}.lo.{kind}" for op, kind in product(("mul24", "mad24"), ("u32", "s32"))]
    made += [f"sad.{kind}" for kind in INTEGERS] + ["add.sat.s32", "sub.sat.s32", "add.u16x2", "min.s16x2", "max.u16x2"]
    made += [f"{op}.{kind}" for op, kind in product(("and", "or", "xor", "not"), ("b16", "b32", "b64", "pred"))]
    made += [f"cnot.{kind}" for kind in ("b16", "b32", "b64")] + ["brev.b32", "brev.b64"]
    made += [f"shl.{kind}" for kind in ("b16", "b32", "b64")]
    made += [f"shr.{kind}" for kind in (*INTEGERS, "b16", "b32", "b64")]
    made += [f"shf.{way}.{mode}.b32" for way, mode in product("lr", ("clamp", "wrap"))] + ["prmt.b32"]
    made += [f"{op}.{kind}" for op, kind in product(("popc", "clz"), ("b32", "b64"))]
    made += [f"bfind{mode}.{kind}" for mode, kind in product(("", ".shiftamt"), WIDE)]
    made += [f"bfe.{kind}" for kind in WIDE] + ["bfi.b32", "bfi.b64"]
    made += [
        f"{op}{cc}.{kind}" for op, cc, kind in product(("add", "addc", "sub", "subc"), ("", ".cc"), ("u32", "u64"))
    ]
    made += [f"{op}{mode}.{kind}" for op, mode, kind in product(("add", "sub", "mul", "fma"), (".rn",), FLOATS)]
    made += [
        f"{op}.rn.{marks}" for op, marks in product(("add", "sub", "mul", "fma"), ("ftz.f32", "sat.f32", "ftz.sat.f32"))
    ]
    made += [
        f"{op}.{mode}.{kind}"
        for op, mode, kind in product(("add", "mul", "fma", "div", "sub"), ("rz", "rm", "rp"), ("f32", "f64"))
    ]
    made += [
        f"{op}.{mode}.{kind}" for op, mode, kind in product(("sqrt", "rcp"), ("rn", "rz", "rm", "rp"), ("f32", "f64"))
    ]
    made += [f"{op}.{kind}" for op, kind in product(("min", "max"), FLOATS)]
    made += [f"{op}.{kind}" for op, kind in product(("min.NaN", "max.NaN"), ("f16", "f16x2", "bf16", "f32"))]
    made += [f"{op}.{kind}" for op, kind in product(("neg", "abs"), FLOATS)]
    made += ["fma.rn.relu.f16", "fma.rn.relu.f16x2", "fma.rn.ftz.f16", "add.ftz.f16x2", "mul.sat.f16", "min.ftz.f32"]
    made += [
        f"{op}.approx{ftz}.f32"
        for op, ftz in product(("sqrt", "rcp", "rsqrt", "sin", "cos", "ex2", "lg2"), ("", ".ftz"))
    ]
    made += ["tanh.approx.f32", "div.full.f32", "div.approx.ftz.f32", "div.rn.f32", "div.rn.f64", "rsqrt.approx.f64"]
    made += ["ex2.approx.f16", "tanh.approx.f16x2", "tanh.approx.bf16", "copysign.f32", "copysign.f64"]
    made += [
        f"testp.{test}.{kind}"
        for test, kind in product(("finite", "infinite", "number", "notanumber", "normal", "subnormal"), ("f32", "f64"))
    ]
    made += [f"setp.{test}.{kind}" for test, kind in product(COMPARISONS, INTEGERS)]
    made += [
        f"setp.{test}.{kind}"
        for test, kind in product((*COMPARISONS, *UNORDERED), ("f16", "bf16", "f32", "ftz.f32", "f64"))
    ]
    made += [
        f"setp.{test}.{join}.{kind}" for test, join, kind in product(("lt", "ne"), ("and", "or", "xor"), ("s32", "f32"))
    ]
    made += [
        f"set.{test}.{result}.{kind}" for test, result, kind in product(("lt", "eq"), ("u32", "f32"), ("s32", "f32"))
    ]
    made += [f"selp.{kind}" for kind in ("b16", "b32", "b64", "f32", "f64", "s32")]
    made += [f"slct.{kind}.{chooser}" for kind, chooser in product(("u32", "f32", "b64"), ("s32", "f32"))]
    made += [f"mov.{kind}" for kind in ("b16", "b32", "b64", "f32", "f64", "pred")]
    made += [f"cvt.{to}.{kind}" for to, kind in product(INTEGERS, INTEGERS)]
    made += [f"cvt.sat.{to}.{kind}" for to, kind in product(INTEGERS, INTEGERS) if to != kind]
    made += [
        f"cvt.{mode}.{to}.{kind}" for mode, to, kind in product(("rn", "rz", "rm", "rp"), ("f16", "f32", "f64"), WIDE)
    ]
    made += [
        f"cvt.{mode}.{to}.{kind}"
        for mode, to, kind in product(("rni", "rzi", "rmi", "rpi"), INTEGERS, ("f16", "f32", "f64"))
    ]
    made += [
        "cvt.f32.f16", "cvt.f64.f32", "cvt.f64.f16", "cvt.f32.bf16", "cvt.rna.tf32.f32", "cvt.rn.bf16.f32",
        "cvt.rz.bf16.f32",
    ]  # fmt: skip
    made += [
        f"cvt.{mode}{sat}.{pair}"
        for mode, sat, pair in product(("rn", "rz", "rm", "rp"), ("", ".sat"), ("f16.f32", "f32.f64", "f16.f64"))
    ]
    made += [
        f"cvt.{mode}.{to}.{kind}" for mode, to, kind in product(DIRECTIONS, HALVES, (*INTEGERS, *HALVES)) if to != kind
    ]
    made += [f"cvt.{mode}.{to}.{kind}" for mode, to, kind in product(WHOLE, (*INTEGERS, "u8", "s8"), HALVES)]
    made += [f"cvt.{mode}.{kind}.{kind}" for mode, kind in product(WHOLE, ("f16", "bf16", "f32", "f64"))]
    made += [f"cvt.{mode}.ftz.f32.{kind}" for mode, kind in product(DIRECTIONS, ("f64",))]
    made += [f"cvt.{mode}.relu.{to}.f32" for mode, to in product(("rn", "rz"), ("f16", "bf16"))]
    made += [f"cvt.{mode}.tf32.f32" for mode in ("rn", "rz", "rn.relu", "rz.relu")]
    made += [
        f"cvt.{mode}{relu}.{to}.f32" for mode, relu, to in product(("rn", "rz"), ("", ".relu"), ("f16x2", "bf16x2"))
    ]
    made += [f"cvt.rn.satfinite{relu}.{to}.f32" for relu, to in product(("", ".relu"), ("e4m3x2", "e5m2x2"))]
    made += [f"cvt.rn.satfinite{relu}.{to}.f16x2" for relu, to in product(("", ".relu"), ("e4m3x2", "e5m2x2"))]
    made += [f"cvt.rn{relu}.f16x2.{kind}" for relu, kind in product(("", ".relu"), ("e4m3x2", "e5m2x2"))]
    made += [
        "cvt.rn.ftz.f32.f64", "cvt.rzi.ftz.s32.f32", "cvt.sat.f32.f32", "cvt.rni.f32.f32", "cvt.rn.f16x2.f32",
        "cvt.rn.relu.bf16x2.f32",
    ]  # fmt: skip
    return list(dict.fromkeys(made))


def _values(kind: str, chance: np.random.Generator) -> np.ndarray[Any, Any]:
    """Random bits and edge values of a PTX type, for each thread."""
    width = max(BITS[kind], 8)
    bits = chance.integers(0, 1 << 64, THREADS, np.uint64, False) >> np.uint64(64 - width)
    if BITS[kind] == 1:
        return (bits & np.uint64(1)).astype("u1")
    edges = [0, 1, 2, 31, 32, 33, 63, (1 << width) - 1, 1 << width - 1, (1 << width - 1) - 1, 255]
    if "f" in kind:
        half = {16: "f2", 32: "f4", 64: "f8"}[16 if "16" in kind else width]
        numbers = np.array([0, -0.0, 1, -1, 0.5, 2.5, -3.5, 1e-5, 65504, np.inf, -np.inf, np.nan, 6e-8, 7.7], half)
        unit = np.dtype(half).itemsize * 8
        patterns = numbers.view(f"u{unit // 8}").astype(object)
        if "bf16" in kind:
            patterns = (numbers.astype("f4").view("u4") >> 16).astype(object)
        near = chance.normal(0, 4, THREADS).astype(half).view(f"u{unit // 8}").astype(object)
        if "bf16" in kind:
            near = (chance.normal(0, 4, THREADS).astype("f4").view("u4") >> 16).astype(object)
        edges = [sum(int(p) << s for s in range(0, width, unit)) for p in patterns]
        bits[::3] = [sum(int(p) << s for s in range(0, width, unit)) for p in near][::3]
    chosen = chance.random(THREADS) < 0.4
    bits[chosen] = np.array([edges[i] for i in chance.integers(0, len(edges), int(chosen.sum()))], np.uint64)
    return bits.astype(f"u{width // 8}")


def _kernel(name: str, slots: tuple[Slot, ...], guard: str) -> tuple[str, list[str]]:
    """PTX that runs an instruction on a row of each buffer, and the types of the rows."""
    kinds = ["pred", *(slot.type for slot in slots)]
    lines, registers = [], []
    for i, kind in enumerate(kinds):
        bits = BITS[kind]
        register = "pred" if bits == 1 else f"b{bits}"
        lines.append(f".reg .{register} %v{i}; .reg .b64 %a{i}; .reg .b16 %t{i};")
        registers.append(f"%v{i}")
        size = max(bits // 8, 1)
        lines.append(f"ld.param.u64 %a{i}, [p{i}]; mad.wide.u32 %a{i}, %tid, {size}, %a{i};")
        if bits == 1:
            lines.append(f"ld.global.u8 %t{i}, [%a{i}]; setp.ne.u16 %v{i}, %t{i}, 0;")
        else:
            lines.append(f"ld.global.b{bits} %v{i}, [%a{i}];")
    lines.append(f"{guard}{name} {', '.join(registers[1:])};")
    for i, slot in enumerate(slots, 1):
        if slot.role != "write":
            continue
        bits = BITS[slot.type]
        if bits == 1:
            lines.append(f"selp.u16 %t{i}, 1, 0, %v{i}; st.global.u8 [%a{i}], %t{i};")
        else:
            lines.append(f"st.global.b{bits} [%a{i}], %v{i};")
    parameters = ", ".join(f".param .u64 p{i}" for i in range(len(kinds)))
    body = "\n".join(line.replace("%tid", "%n") for line in lines)
    text = (
        ".version 8.6\n.target sm_90a\n.address_size 64\n"
        f".visible .entry k({parameters}) {{\n.reg .u32 %n; mov.u32 %n, %tid.x;\n{body}\nret;\n}}\n"
    )
    return text, kinds


def _near(name: str, kind: str, operands: np.ndarray[Any, Any], results: np.ndarray[Any, Any]) -> bool:
    """Return whether approximations of a function are as near as the PTX manual says."""

    def values(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        halves = bf16_values(bits.view("u2")) if "bf16" in kind else bits.view("f2" if "16" in kind else "f4")
        return halves.astype(np.float64)

    with np.errstate(all="ignore"):
        x, result = values(operands), values(results)
        if ".ftz" in name:
            x = np.where(np.abs(x) < 2.0**-126, np.copysign(0.0, x), x)
        exact = TRANSCENDENTAL[name.split(".")[0]](x)
        tolerance = (
            2.0**-7 if "bf16" in kind else 2.0**-9.9 if "16" in kind else 2.0**-10 if "tanh" in name else 2.0**-20
        )
        least = 2.0**-14 if "16" in kind else 2.0**-126
        off = np.abs(result - exact) <= tolerance * np.maximum(np.abs(exact), 1 if name[:3] in "sincoslg2" else least)
    beyond = np.abs(exact) > (65000 if "f16" in kind and "bf16" not in kind else 3e38)
    far = (np.abs(x) > 1e3) & (name[:3] in ("sin", "cos"))
    return bool((off | (result == exact) | (np.isnan(result) & np.isnan(exact)) | beyond | far).all())


@pytest.mark.parametrize("name", _names())
def test_instruction_computes_what_was_recorded(name):
    opcode, *modifiers = name.split(".")
    slots = signature(opcode, tuple(modifiers))
    assert slots is not None
    slots = tuple(slot for slot in slots if not slot.optional)
    chance = np.random.default_rng(sum(name.encode()))
    seen = []
    for guard in ("", "@%v0 "):
        text, kinds = _kernel(name, slots, guard)
        buffers = {f"b{i}": _values(kind, chance) for i, kind in enumerate(kinds)}
        operands = {key: values.copy() for key, values in buffers.items()}
        counts = emulate(parse(text), KernelLaunch("k", (1,), (THREADS,), list(buffers), buffers))
        if opcode in TRANSCENDENTAL:
            ran = slice(None) if not guard else operands["b0"].astype(bool)
            assert _near(name, kinds[1], operands["b2"][ran], buffers["b1"][ran])
            seen.append(digest(counts))
        else:
            rows = [one_nan(kind, buffers[f"b{i}"]) for i, kind in enumerate(kinds)]
            seen.append(digest(counts, *rows))
    check(name, " ".join(seen))
