"""Read the machine code of PTX: ptxas assembles it with line information, nvdisasm prints it.

The line information relates each machine instruction to a line of the PTX. `machine_code` returns None if a program of
the toolkit is missing, refuses the code, crashes or takes too long, if its output is not as expected, or if
`KERNREC_COUNTS=ptx` is set.
"""

import os
import re
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from kernrec.compile.assemble import assembler, toolkit_program
from kernrec.util.light_dataclass import dataclass

COUNTS = "KERNREC_COUNTS"
"""Environment variable: `ptx` to count instructions from PTX although machine code can be read."""
_LIMIT_S = 60.0
_LARGEST = 100_000_000
"""Maximum bytes of nvdisasm's output; larger output is ignored."""
_OLDEST = 75
_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,\s]+),")
_LINE = re.compile(r'\s*//## File "\.nv_debug_ptx_txt", line (\d{1,9})$')
_LABEL = re.compile(r"([.$\w]+):$")
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,8})\*/\s+(?:@!?U?P[0-9T]+ )?\s*([A-Z][A-Z0-9_]*)((?:\.\w+)*)([^;]*);")
_TARGET = re.compile(r"`\(([.$\w]+)\)")
_ARCHITECTURE = re.compile(r"^\s*\.target\s+sm_(\d+)([af]?)", re.MULTILINE)


@dataclass(frozen=True)
class MachineInstruction:
    """One machine instruction."""

    line: int
    """Line of the PTX, from 1; 0 if there is none."""
    opcode: str
    """Opcode without modifiers, such as `LDG`."""
    modifiers: tuple[str, ...]
    """Modifiers in order, such as `E` and `128`."""
    operands: str
    """Text of the operands."""

    @property
    def target(self) -> str | None:
        """Label in the operands, such as a branch target; None if there is none."""
        match = _TARGET.search(self.operands)
        return match[1] if match else None


@dataclass(frozen=True)
class MachineCode:
    """Machine code of one kernel, followed by the subroutines that ptxas adds."""

    instructions: tuple[MachineInstruction, ...]
    labels: dict[str, int]
    """Index of the instruction after each label."""


def disassembler() -> str | None:
    """Return the path of `nvdisasm`; None if it is not installed."""
    return toolkit_program("nvdisasm")


def code_source(sm: int) -> str:
    """Return the architecture and sizes of the programs that `machine_code` uses; empty if it returns None."""
    programs = _programs(sm)
    return " ".join([f"sm_{sm}", *(str(Path(path).stat().st_size) for path in programs)]) if programs else ""


def _programs(sm: int) -> tuple[str, ...]:
    """Return the paths of assembler and disassembler; empty if kernrec does not read machine code of `sm`."""
    ptxas, nvdisasm = assembler(), disassembler()
    if ptxas is None or nvdisasm is None or sm < _OLDEST or os.environ.get(COUNTS) == "ptx":
        return ()
    return ptxas, nvdisasm


def machine_code(ptx: str, sm: int) -> dict[str, MachineCode] | None:
    """Return the machine code of each function of a PTX text by name; None if it cannot be read.

    Args:
        sm: compute capability.
    """
    programs = _programs(sm)
    return _read(ptx, sm, programs) if programs else None


@lru_cache(maxsize=4)
def _read(ptx: str, sm: int, programs: tuple[str, ...]) -> dict[str, MachineCode] | None:
    ptxas, nvdisasm = programs
    stated = _ARCHITECTURE.search(ptx)
    target = f"sm_{sm}{stated[2] if stated and int(stated[1]) == sm else ''}"
    with tempfile.TemporaryDirectory() as folder:
        source, cubin, text = (Path(folder, f"kernel.{kind}") for kind in ("ptx", "cubin", "sass"))
        source.write_text(ptx, encoding="utf-8")
        try:
            command = [ptxas, "--generate-line-info", f"--gpu-name={target}", str(source), "-o", str(cubin)]
            subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=True)
            with text.open("wb") as output:
                # Data flow analysis doubles the time and only finds the targets of indirect branches.
                command = [nvdisasm, "-c", "-gp", "-ndf", str(cubin)]
                subprocess.run(command, stdout=output, stderr=subprocess.DEVNULL, timeout=_LIMIT_S, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        if text.stat().st_size > _LARGEST:
            return None
        return parse_disassembly(text.read_text("utf-8", errors="replace"))


def parse_disassembly(text: str) -> dict[str, MachineCode] | None:
    """Return the machine code in nvdisasm's output, by function; None if a line has an unknown form."""
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
            line = int(match[1])
        elif match := _SECTION.match(row):
            close()
            name, line = match[1], 0
        elif match := _LABEL.match(row):
            labels[match[1]] = len(instructions)
        elif row.lstrip().startswith("/*"):
            return None
    close()
    return functions
