"""Read the machine code that the assembler generates from PTX, with the PTX line of each instruction.

The opcodes are from NVIDIA's "CUDA Binary Utilities", which lists the instruction sets of Turing to Blackwell.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from kernrec.compile.compiled import assembler, toolkit_program
from kernrec.util.light_dataclass import dataclass

COUNTS = "KERNREC_COUNTS"
"""Environment variable that makes kernrec estimate instructions from PTX if its value is `ptx`."""
_LIMIT_S = 60.0
_LARGEST = 100_000_000
"""Maximum bytes of nvdisasm's output."""
_OLDEST = 75
_SECTION = re.compile(r"^[ \t]*\.section[ \t]+\.text\.([^,\s]+),", re.MULTILINE)
_LINE = re.compile(r'^([ \t]*//## File "\.nv_debug_ptx_txt", line )(\d{1,9})$', re.MULTILINE)
_LABEL = re.compile(r"([.$\w]+):$")
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,8})\*/\s+(?:@!?U?P[0-9T]+ )?\s*([A-Z][A-Z0-9_]*)((?:\.\w+)*)([^;]*);")
_STATIC = re.compile(r"^\.shared([^;\[\n]*\bglobal_smem\w*)\[\d+\]", re.MULTILINE)
_TARGET = re.compile(r"`\(([.$\w]+)\)")
_ARCHITECTURE = re.compile(r"^\s*\.target\s+sm_(\d+)([af]?)", re.MULTILINE)


@dataclass(frozen=True)
class MachineInstruction:
    line: int
    """Line of the PTX, counted from 1, or 0 if unknown."""
    opcode: str
    modifiers: tuple[str, ...]
    operands: str

    @property
    def target(self) -> str | None:
        """Return the label among the operands, or None."""
        match = _TARGET.search(self.operands)
        return match[1] if match else None


@dataclass(frozen=True)
class MachineCode:
    """Machine instructions of a kernel and of the subroutines that ptxas added."""

    instructions: tuple[MachineInstruction, ...]
    labels: dict[str, int]
    """Index of the instruction that follows each label."""


def disassembler() -> str | None:
    """Return the path of `nvdisasm`, or None if it is not installed."""
    return toolkit_program("nvdisasm")


def code_source(sm: int) -> str:
    """Return a text that identifies the installed ptxas and nvdisasm, or an empty text if they do not support `sm`."""
    programs = _programs(sm)
    return " ".join([f"sm_{sm}", *(str(Path(path).stat().st_size) for path in programs)]) if programs else ""


def _programs(sm: int) -> tuple[str, ...]:
    ptxas, nvdisasm = assembler(), disassembler()
    if ptxas is None or nvdisasm is None or sm < _OLDEST or os.environ.get(COUNTS) == "ptx":
        return ()
    return ptxas, nvdisasm


def machine_code(ptx: str, sm: int, listing: str = "") -> dict[str, MachineCode] | None:
    """Return the machine code of each PTX function, or None if ptxas or nvdisasm is missing or fails.

    `KERNREC_COUNTS=ptx` makes the result None.

    Args:
        listing: output of nvdisasm for the PTX, or an empty text to run ptxas and nvdisasm now.
    """
    if not listing:
        _, listing = assemble_listing(ptx, sm) or ("", "")
    return parse_disassembly(listing) if listing else None


def assemble_listing(ptx: str, sm: int) -> tuple[str, str] | None:
    """Assemble PTX. Return the output of ptxas, and of nvdisasm, or None if a program is missing or fails."""
    return _assembled(ptx, sm, _programs(sm))


@lru_cache(maxsize=4)
def _assembled(ptx: str, sm: int, programs: tuple[str, ...]) -> tuple[str, str] | None:
    if not programs:
        return None
    ptxas, nvdisasm = programs
    stated = _ARCHITECTURE.search(ptx)
    target = f"sm_{sm}{stated[2] if stated and int(stated[1]) == sm else ''}"
    with tempfile.TemporaryDirectory() as folder:
        source, cubin, text = (Path(folder, f"kernel.{kind}") for kind in ("ptx", "cubin", "sass"))
        # Triton requests all shared memory at the launch. As static memory, over 48 KB would be an error.
        source.write_text(_STATIC.sub(r".extern .shared\1[]", ptx), encoding="utf-8")
        try:
            command = [ptxas, "-v", "--generate-line-info", f"--gpu-name={target}", str(source), "-o", str(cubin)]
            done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=True)
            with text.open("wb") as output:
                # Disable nvdisasm's data flow analysis. It only finds targets of indirect branches, but doubles the run
                # time.
                command = [nvdisasm, "-c", "-gp", "-ndf", str(cubin)]
                subprocess.run(command, stdout=output, stderr=subprocess.DEVNULL, timeout=_LIMIT_S, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        if text.stat().st_size > _LARGEST:
            return None
        return (done.stderr + done.stdout).decode("utf-8", errors="replace"), text.read_text("utf-8", errors="replace")


def split_listing(listing: str) -> dict[str, str]:
    """Return the part of a listing for each function."""
    starts = [(match[1], match.start()) for match in _SECTION.finditer(listing)]
    ends = [*(start for _, start in starts[1:]), len(listing)]
    return {name: listing[start:end] for (name, start), end in zip(starts, ends, strict=False)}


def renumbered_listing(listing: str, skipped: int) -> str:
    """Return a listing with `skipped` subtracted from its PTX line numbers."""
    return _LINE.sub(lambda line: f"{line[1]}{int(line[2]) - skipped}", listing)


@lru_cache(maxsize=4)
def parse_disassembly(text: str) -> dict[str, MachineCode] | None:
    """Return the machine code of each function in nvdisasm's output. Return None if a line has an unknown form."""
    functions: dict[str, MachineCode] = {}
    instructions: list[MachineInstruction] = []
    labels: dict[str, int] = {}
    name, line = "", 0

    def close() -> None:
        if name:
            functions[name] = MachineCode(tuple(instructions), dict(labels))
        instructions.clear()
        labels.clear()

    for row in text.splitlines():
        if match := _INSTRUCTION.match(row):
            _, opcode, modifiers, operands = match.groups()
            marks = tuple(modifiers[1:].split(".")) if modifiers else ()
            instructions.append(MachineInstruction(line, opcode, marks, operands.strip()))
        elif match := _LINE.match(row):
            line = int(match[2])
        elif match := _SECTION.match(row):
            close()
            name, line = match[1], 0
        elif match := _LABEL.match(row):
            labels[match[1]] = len(instructions)
        elif row.lstrip().startswith("/*"):
            return None
    close()
    return functions


_OPCODES: Mapping[str, str] = {
    "fma32": "FFMA FADD FMUL FFMA32I FADD32I FMUL32I FFMA2 FADD2 FMUL2 FHADD FHFMA FSWZADD FCHK",
    "fcmp": "FSETP FMNMX FMNMX3 FSET",
    "alu": "IADD IADD2 IADD3 IADD32I LOP LOP3 LOP32I PLOP3 SHF SHL SHR LEA PRMT SEL FSEL IMNMX VIMNMX VIMNMX3 VIADD "
    "VIADDMNMX VABSDIFF VABSDIFF4 FLO POPC BREV BMSK SGXT IABS P2R R2P PSETP VHMNMX SHFL32 ISCADD BFE BFI ICMP NOTP",
    "setp": "ISETP ISET CSETP",
    "imad": "IMAD IMAD32I IDP IDP4A IMUL IMUL32I XMAD",
    "f16": "HFMA2 HADD2 HMUL2 HMNMX2 HSET2 HSETP2 HADD2_32I HMUL2_32I HFMA2_32I HMNMX HFMA",
    "mufu": "MUFU",
    "f2i": "F2I F2IP FRND I2F",
    "i2f": "I2FP",
    "cvt": "F2F F2FP I2I I2IP",
    "f64": "DADD DFMA DMUL DSETP DMNMX",
    "mma": "HMMA IMMA DMMA BMMA QMMA OMMA HGMMA IGMMA BGMMA QGMMA UTCHMMA UTCIMMA UTCQMMA UTCOMMA UTCMXQMMA",
    "branch": "BRA BRX BRXU EXIT RET CALL JMP JMX BREAK BPT KILL",
    "converge": "BSSY BSYNC BMOV WARPSYNC YIELD BSYNCHRONOUS RPCMOV NANOSLEEP",
    "move": "MOV MOV32I S2R S2UR CS2R R2UR MOVM LEPC GETLMEMBASE",
    "load_const": "LDC",
    "ld_shared": "LDS LDSM",
    "st_shared": "STS STSM",
    "ld_global": "LDG LD TEX TLD TLD4 TMML TXD SULD",
    "st_global": "STG ST SUST",
    "ld_local": "LDL",
    "st_local": "STL",
    "cp_async": "LDGSTS",
    "atomic": "ATOM ATOMG ATOMS RED REDG SUATOM SURED",
    "bar": "BAR B2R",
    "shfl": "SHFL VOTE MATCH REDUX CREDUX ELECT",
}
_CLASS = {opcode: name for name, opcodes in _OPCODES.items() for opcode in opcodes.split()}
_NONE = frozenset({"NOP"})
_ZERO = "-RZ, RZ, "
_WIDTHS = {"64": 8, "128": 16, "256": 32, "U8": 1, "S8": 1, "U16": 2, "S16": 2}


def machine_class(ins: MachineInstruction) -> str | None:
    """Return the class of a machine instruction. Return None for padding, which takes no issue slot."""
    opcode = ins.opcode
    if opcode in _NONE:
        return None
    if opcode == "IMAD" and "MOV" in ins.modifiers:
        return "move"
    if opcode.startswith("HFMA2") and _ZERO in ins.operands:
        return "move"  # With a zero operand, HFMA2 loads a constant in the f16 pipe.
    if opcode == "F2F" and "64" in "".join(ins.modifiers):
        return "cvt64"
    if opcode in ("F2I", "I2F") and any("64" in mark for mark in ins.modifiers):
        return "cvt64"
    name = _CLASS.get(opcode)
    if name is None:
        return "uniform" if opcode.startswith("U") and opcode[:2] != "UT" else "other"
    return name


def access_bytes(ins: MachineInstruction) -> int:
    """Return the bytes per lane that a load or store moves."""
    return next((_WIDTHS[mark] for mark in reversed(ins.modifiers) if mark in _WIDTHS), 4)
