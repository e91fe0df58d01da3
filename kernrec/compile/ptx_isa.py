"""Read a PTX text's ISA version and the toolkit that it needs, and convert PTX to an older version.

A compiler writes its own ISA version into PTX. An older driver or assembler refuses this version, even if every
instruction is as old as CUDA 11. The assembler checks the converted code, because it knows the first version of each
instruction.
"""

import re

from kernrec.compile.assemble import VERSION_LINE, assembler, run_assembler
from kernrec.compile.compiled import CompileError, NoCompilerError, first_error
from kernrec.errors import UsageError

OLDEST = (6, 3)
"""First ISA version with sm_75, the oldest architecture that kernrec compiles for."""

_TARGET = re.compile(r"^[ \t]*\.target[ \t]+(sm_\w+)", re.MULTILINE)
_NEWER = re.compile(r"line (\d+); error\s*: (?:\w+ '([^']+)' )?requires (?:PTX ISA )?\.version (\d+)\.(\d+) or later")
_UNSUPPORTED = re.compile(r"PTX \.version [\d.]+ does not support \.target (sm_\w+)")
_HINT = re.compile(r'^[ \t]*\.pragma[ \t]+"used_bytes_mask[^"]*";[ \t]*\n', re.MULTILINE)
"""Matches a hint of ISA 8.3 about the used bytes of the next load, which does not change the code's meaning."""
# PTX ISA, section "Release Notes": https://docs.nvidia.com/cuda/parallel-thread-execution/#release-notes
_TOOLKITS = {
    (6, 3): "10.0", (6, 4): "10.1", (6, 5): "10.2", (7, 0): "11.0", (7, 1): "11.1", (7, 2): "11.2", (7, 3): "11.3",
    (7, 4): "11.4", (7, 5): "11.5", (7, 6): "11.6", (7, 7): "11.7", (7, 8): "11.8", (8, 0): "12.0", (8, 1): "12.1",
    (8, 2): "12.2", (8, 3): "12.3", (8, 4): "12.4", (8, 5): "12.5", (8, 6): "12.7", (8, 7): "12.8", (8, 8): "12.9",
}  # fmt: skip
"""First CUDA toolkit for each ISA version. From ISA 9.0 (CUDA 13.0), the numbers increase together."""


def isa_of(ptx: str) -> tuple[int, int]:
    """Return the ISA version of a PTX text. Raises `UsageError` if the text states none."""
    match = VERSION_LINE.search(ptx)
    if match is None:
        raise UsageError("no .version directive: this is not PTX")
    return int(match[2]), int(match[3])


def toolkit_of(isa: tuple[int, int]) -> str:
    """Return the first CUDA toolkit that accepts an ISA version: `12.0` for (8, 0)."""
    return _TOOLKITS.get(isa) or f"{isa[0] + 4}.{isa[1]}"


def read_isa(flag: str, text: str) -> tuple[int, int]:
    """Parse an ISA version. Raises `UsageError` if the version does not exist."""
    match = re.fullmatch(r"(\d{1,2})\.(\d{1,2})", text.strip())
    isa = (int(match[1]), int(match[2])) if match else (0, 0)
    if isa < OLDEST or (isa < (9, 0) and isa not in _TOOLKITS):
        shown = ", ".join(f"{major}.{minor}" for major, minor in (*_TOOLKITS, (9, 0)))
        raise UsageError(f"{flag} {text!r:.40}: expected a version of the PTX ISA: {shown} or later")
    return isa


def with_isa(ptx: str, isa: tuple[int, int]) -> str:
    """Convert PTX to another ISA version, drop newer hints, and let the assembler check the result.

    Raises:
        UsageError: The code has a newer instruction, which the message names, or its version is already older.
        NoCompilerError: The assembler is not installed.
    """
    own, shown = isa_of(ptx), "{}.{}".format(*isa)
    if isa == own:
        return ptx
    if isa > own:
        raise UsageError(f"PTX ISA {shown} is newer than the compiler's {own[0]}.{own[1]}, which later toolkits take")
    tool = assembler()
    if tool is None:
        raise NoCompilerError(
            "PTX for another ISA is checked by ptxas, which is not installed: `pip install nvidia-cuda-nvcc`, or set"
            " CUDA_HOME"
        )
    text = VERSION_LINE.sub(rf"\g<1>{shown}", ptx, count=1)
    if isa < (8, 3):
        text = _HINT.sub("", text)
    target = _TARGET.search(ptx)
    status, log, _ = run_assembler(tool, text, target[1] if target else "sm_75", "kernel.ptx")
    if status == 0:
        return text
    newer = [((int(major), int(minor)), name, int(line)) for line, name, major, minor in _NEWER.findall(log)]
    if newer:
        needed, name, line = max(newer, key=lambda entry: (entry[0], -entry[2]))
        instruction = text.splitlines()[line - 1].strip()[:80]
        raise UsageError(
            f"PTX ISA {shown} has no {name or 'such instruction'} ({instruction}): it needs"
            f" {needed[0]}.{needed[1]}, which is CUDA {toolkit_of(needed)}"
        )
    if unsupported := _UNSUPPORTED.search(log):
        raise UsageError(f"PTX ISA {shown} has no target {unsupported[1]}: it is older than that architecture")
    raise CompileError(f"ptxas refuses the code as PTX ISA {shown}: {first_error(log, 'kernel.ptx')}", log)
