"""Whether two compilations of a kernel are the same code, as far as that can be: NVRTC is not quite deterministic.

From process to process it arranges some code differently (observed with 13.5: the same arithmetic, global memory
accesses and barriers; up to 2 % other instructions, mostly before the loop; up to 19 registers, and with them a spill
of a few bytes).
"""

import re
from collections import Counter

import numpy as np

from kernrec.store import ProfileRow

_LITERAL_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_PTX_COMMENT = re.compile(r"//[^\n]*|^\s*\.(?:loc|file)\b[^\n]*", re.MULTILINE)
_PTX_WORD = re.compile(r"[%$A-Za-z_][A-Za-z0-9_$]*")
_PTX_NAME = re.compile(r"%(?:r|rs|rd|f|fd|p)[0-9]+|\$L_\w+|\b(?:_Z[\w$]+|L__\w+|p|q|h|half|low|high|pair)\b")
"""Registers, labels, mangled names, and what the library's inline assembly calls its own registers."""
_PTX_REGISTERS = re.compile(r"\.reg \.\w+ %\w+<[0-9]+>;")
_PTX_VARIABLE = re.compile(r"\.global \.align [0-9]+ \.\w+ (\w+)(?: = [^;{]*)?;")
_PTX_ORDERED = re.compile(r"(?:ld|st)\.(?:global|shared|local)|bar\.|bra|ret|cp\.async|mma|ldmatrix|shfl")
_FIXED = ("global.", "barriers", "issue.fma", "issue.mma", "mma.", "issue.bar", "issue.cp_async", "issue.st_")
_COUNTS_VARY = 0.04  # of the instructions of a block and a trip
_REGISTERS_VARY = 32


def form(ptx: str) -> list[tuple[str, ...]]:
    """The instructions of every basic block, without the names of registers and in an order of their own.

    They come sorted, and after them those that access memory, synchronize or branch in the order of the PTX. Variables
    that no instruction uses are left out: NVRTC keeps every constant of the source as one.
    """
    text = " ".join(_PTX_COMMENT.sub("", ptx).split())
    words = Counter(_PTX_WORD.findall(text))
    text = _PTX_VARIABLE.sub(lambda variable: variable[0] if words[variable[1]] > 1 else "", text)
    blocks: list[list[str]] = [[]]
    for statement in _PTX_REGISTERS.sub("", text).split(";"):
        statement = statement.strip("{} ")  # the braces of functions and of inline assembly
        if statement.startswith("$"):
            blocks.append([])
        blocks[-1].append("".join(_PTX_NAME.sub("%", statement).split()))
        if "bra" in statement:
            blocks.append([])
    return [(*sorted(block), *(text for text in block if _PTX_ORDERED.search(text))) for block in blocks]


def tokens(source: str) -> list[str]:
    """A source line by line without comments, empty lines and the amount of white space."""
    text = _LITERAL_OR_COMMENT.sub(lambda part: part[0] if part[0].startswith('"') else " ", source)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def within_compiler_variation(row: ProfileRow, other: ProfileRow) -> bool:
    """Whether two profiles of a variant differ by no more than two runs of the compiler do.

    What the algorithm determines (arithmetic, global memory, barriers) must be the same; the rest may differ a little.
    """
    if row.terms != other.terms or abs(row.registers - other.registers) > _REGISTERS_VARY:
        return False
    first, second = (dict(zip(r.metrics, r.counts, strict=True)) for r in (row, other))
    nothing = np.zeros(len(row.terms))
    slack = _COUNTS_VARY * max(first["issue"].sum(), second["issue"].sum())
    for metric in {*first, *second}:
        difference = np.abs(first.get(metric, nothing) - second.get(metric, nothing)).max()
        allowed = slack * (32 if metric == "lanes" else 1)  # threads, 32 to an instruction
        if difference > (0.0 if metric.startswith(_FIXED) else allowed):
            return False
    return True
