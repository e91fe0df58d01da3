"""PTX without what differs between two compilations of the same code."""

import re
from collections import Counter

_COMMENT = re.compile(r"//[^\n]*|^\s*\.(?:loc|file)\b[^\n]*", re.MULTILINE)
_WORD = re.compile(r"[%$A-Za-z_][A-Za-z0-9_$]*")
_NAME = re.compile(r"%(?:r|rs|rd|f|fd|p)[0-9]+|\$L_\w+|\b(?:_Z[\w$]+|L__\w+|p|q|h|half|low|high|pair)\b")
"""Registers, labels, mangled names, and what the library's inline assembly calls its own registers."""
_REGISTERS = re.compile(r"\.reg \.\w+ %\w+<[0-9]+>;")
_VARIABLE = re.compile(r"\.global \.align [0-9]+ \.\w+ (\w+)(?: = [^;{]*)?;")
_ORDERED = re.compile(r"(?:ld|st)\.(?:global|shared|local)|bar\.|bra|ret|cp\.async|mma|ldmatrix|shfl")


def form(ptx: str) -> list[tuple[str, ...]]:
    """Return the instructions of every basic block, sorted and without the names of registers.

    Behind them are those that access memory, synchronize or branch, in the order of the PTX. Variables that no
    instruction uses are left out: NVRTC keeps every constant of the source as one.
    """
    text = " ".join(_COMMENT.sub("", ptx).split())
    words = Counter(_WORD.findall(text))
    text = _VARIABLE.sub(lambda variable: variable[0] if words[variable[1]] > 1 else "", text)
    blocks: list[list[str]] = [[]]
    for statement in _REGISTERS.sub("", text).split(";"):
        statement = statement.strip("{} ")  # the braces of functions and of inline assembly
        if statement.startswith("$"):
            blocks.append([])
        blocks[-1].append("".join(_NAME.sub("%", statement).split()))
        if "bra" in statement:
            blocks.append([])
    return [(*sorted(block), *(text for text in block if _ORDERED.search(text))) for block in blocks]
