"""Normal form of PTX that is equal for two compilations of the same code."""

import re
from collections import Counter

_COMMENT = re.compile(r"//[^\n]*|^\s*\.(?:loc|file)\b[^\n]*", re.MULTILINE)
_WORD = re.compile(r"[%$A-Za-z_][A-Za-z0-9_$]*")
_NAME = re.compile(r"%(?:r|rs|rd|f|fd|p)[0-9]+|\$L_\w+|\b(?:_Z[\w$]+|L__\w+|p|q|h|half|low|high|pair)\b")
"""Names that are normalized: registers, labels, mangled names, and registers of the library's inline assembly."""
_REGISTERS = re.compile(r"\.reg \.\w+ %\w+<[0-9]+>;")
_VARIABLE = re.compile(r"\.global \.align [0-9]+ \.\w+ (\w+)(?: = [^;{]*)?;")
_ORDERED = re.compile(r"(?:ld|st)\.(?:global|shared|local)|bar\.|bra|ret|cp\.async|mma|ldmatrix|shfl")


def form(ptx: str) -> list[tuple[str, ...]]:
    """Return the sorted instructions of every basic block, without register names.

    The instructions that access memory, synchronize or branch follow again in program order. Variables that no
    instruction uses are omitted, because NVRTC emits every constant of the source as a variable.
    """
    text = " ".join(_COMMENT.sub("", ptx).split())
    words = Counter(_WORD.findall(text))
    text = _VARIABLE.sub(lambda variable: variable[0] if words[variable[1]] > 1 else "", text)
    blocks: list[list[str]] = [[]]
    for statement in _REGISTERS.sub("", text).split(";"):
        statement = statement.strip("{} ")  # drop braces of functions and inline assembly
        if statement.startswith("$"):
            blocks.append([])
        blocks[-1].append("".join(_NAME.sub("%", statement).split()))
        if "bra" in statement:
            blocks.append([])
    return [(*sorted(block), *(text for text in block if _ORDERED.search(text))) for block in blocks]
