"""The classes of conversions beside the machine code that ptxas makes of them.

Each PTX conversion is assembled alone for each architecture and disassembled. A line a conversion names its machine
instruction and the class that `kernrec.ptx.analysis.machine_cost` counts for it, once for architectures that agree.
Exits 1 where they contradict each other. Needs ptxas and nvdisasm, parts of the CUDA toolkit.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from front import Table

from evidence.recordings.files import AbsentError
from kernrec.ptx.analysis.machine_cost import machine_cost
from kernrec.ptx.ir.parser import parse

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
CONVERSIONS = {
    "rn.f32.u32": "r", "rn.f32.s32": "r", "rz.f32.s32": "r", "rp.f32.u32": "r", "rn.f32.u16": "h", "rn.f32.s16": "h",
    "rn.f32.u8": "r", "rn.f32.s8": "r", "rzi.s32.f32": "f", "rni.s32.f32": "f", "rzi.u32.f32": "f", "rzi.u16.f32": "f",
    "rni.f32.f32": "f", "rmi.f32.f32": "f", "sat.f32.f32": "f", "rn.f16.f32": "f", "rn.bf16.f32": "f", "f32.f16": "h",
    "rn.f16.s32": "r", "rn.f16.u16": "h", "rzi.s32.f16": "h", "rni.f16.f16": "h", "rn.f16x2.f32": "ff",
    "rn.bf16x2.f32": "ff", "rn.satfinite.e4m3x2.f32": "ff", "rn.f16x2.e4m3x2": "h", "rn.f32.u64": "l",
    "rzi.s64.f32": "f", "rn.f32.f64": "d", "f64.f32": "f", "rn.f64.s32": "r",
}  # fmt: skip
"""Conversions and the types of the registers that they read."""

_TYPES = {"r": "b32", "h": "b16", "f": "f32", "l": "b64", "d": "f64"}
_RESULT = {
    "f32": "f", "f64": "d", "s64": "l", "u16": "h", "f16": "h", "bf16": "h", "e4m3x2": "h",
}  # fmt: skip
_CLASSES = {"F2FP": "cvt", "I2FP": "i2f", "F2I": "f2i", "I2F": "f2i", "FRND": "f2i", "FADD": "fma32", "HADD2": "f16"}
_OLD = {"F2F": "cvt", "I2F": "i2f"}
"""The names of sm_86's instructions where they do not exist yet."""


def run(disassembler: str = "nvdisasm", sm: Annotated[list[int] | None, typer.Option()] = None) -> int:
    """Print all conversions, of some architectures alone."""
    for tool in ("ptxas", disassembler):
        if shutil.which(tool) is None:
            raise AbsentError(f"no {tool}; it is part of the CUDA toolkit")
    wrong, table = 0, Table()
    for conversion, sources in CONVERSIONS.items():
        counted, by_code = counted_class(conversion), dict[str, list[int]]()
        for architecture in sm or ARCHITECTURES:
            code = machine_code(kernel_of(conversion, sources, architecture), architecture, disassembler)
            if code is not None:
                by_code.setdefault(code, []).append(architecture)
        for code, architectures in by_code.items():
            right = agrees(code, counted)
            wrong += not right
            cells = {"counted as": counted, "machine code": code, "sm": " ".join(map(str, architectures))}
            table.row({"conversion": conversion, **cells, "": "" if right else "CONTRADICTION"})
    return int(wrong > 0)


def kernel_of(conversion: str, sources: str, sm: int) -> str:
    """PTX of a kernel that loads, converts and stores."""
    result = _RESULT.get(conversion.split(".")[-2], "r")
    loads = "".join(f"ld.global.{_TYPES[kind]} %i{i}, [%q+{8 * i}];" for i, kind in enumerate(sources))
    registers = "".join(f".reg .{_TYPES[kind]} %i{i};" for i, kind in enumerate(sources))
    operands = ", ".join(f"%i{i}" for i in range(len(sources)))
    return (
        f".version 8.8\n.target sm_{sm}\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b)\n{{\n"
        f".reg .b64 %p, %q; .reg .{_TYPES[result]} %o; {registers}\n"
        f"ld.param.u64 %q, [a]; ld.param.u64 %p, [b]; {loads}\n"
        f"cvt.{conversion} %o, {operands};\nst.global.{_TYPES[result]} [%p], %o; ret;\n}}\n"
    )


def counted_class(conversion: str) -> str:
    """The class that a profile counts."""
    module = parse(kernel_of(conversion, CONVERSIONS[conversion], 90))
    converts = next(ins for ins in module.functions["k"].instructions if ins.opcode == "cvt")
    return " ".join(name for name, _ in machine_cost(converts))


def machine_code(ptx: str, sm: int, disassembler: str) -> str | None:
    """The machine instruction that converts; None where the architecture has no such conversion."""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "k.ptx", Path(folder) / "k.cubin"
        source.write_text(ptx)
        if _output(["ptxas", f"-arch=sm_{sm}", source, "-o", binary]) is None:
            return None
        return conversion_of(_output([disassembler, binary]) or "")


def _output(command: Sequence[str | Path]) -> str | None:
    """The output of a command; None where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def conversion_of(sass: str) -> str:
    """The first instruction of a listing that converts; empty without one."""
    names = "|".join({**_CLASSES, **_OLD})
    match = re.search(rf"^\s+/\*[0-9a-f]+\*/\s+((?:{names})(?:\.[A-Z0-9_]+)*)\s", sass, re.MULTILINE)
    return match.group(1) if match else ""


def agrees(code: str, counted: str) -> bool:
    """Whether a machine instruction is of the class that is counted; 64-bit ones are a class of their own."""
    name, *rest = code.split(".")
    if {"F64", "S64", "U64"} & {*rest}:
        return counted == "cvt64"
    return counted in (_CLASSES.get(name), _OLD.get(name))
