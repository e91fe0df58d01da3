"""Test that each instruction in `expected.json` gives the recorded results for random operands, edge values and masks.
Approximate transcendental functions depend on the C library, so they are compared with NumPy's."""

from typing import Any

import numpy as np
import pytest

from kernrec.ptx import KernelLaunch, emulate, parse
from kernrec.ptx.ir.operand import BITS
from kernrec.ptx.ir.signatures import Slot, signature
from tests.engine.expected import check, digest, one_nan, table
from tests.helpers.narrow_floats import bf16_values

THREADS = 480
TRANSCENDENTAL = {"sin": np.sin, "cos": np.cos, "ex2": np.exp2, "lg2": np.log2, "tanh": np.tanh}


def _values(kind: str, chance: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return random bits and edge values of a PTX type, one for each thread."""
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
    """Return PTX that runs an instruction on one row of each buffer, and the types of these rows."""
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
    """Return whether the approximate results are within the error that the PTX manual allows."""

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


@pytest.mark.parametrize("name", [case for case in table() if " " not in case])
def test_instruction_computes_the_recorded_result(name):
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
