"""Compare two compilations of a kernel, allowing for NVRTC's variation: it is not quite deterministic.

NVRTC arranges some code differently in each process. With 13.5, arithmetic, global memory accesses and barriers were
equal. Up to 2 % of the other instructions, mostly before the loop, differed, and up to 19 registers, with a spill of a
few bytes.
"""

import re

import numpy as np

from kernrec.store import ProfileRow

_LITERAL_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_FIXED = ("global.", "barriers", "issue.fma", "issue.mma", "mma.", "issue.bar", "issue.cp_async", "issue.st_")
_COUNTS_VARY = 0.04  # maximum, as a fraction of issued instructions
_REGISTERS_VARY = 32


def tokens(source: str) -> list[str]:
    """Return the lines of a source without comments, empty lines and repeated spaces."""
    text = _LITERAL_OR_COMMENT.sub(lambda part: part[0] if part[0].startswith('"') else " ", source)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def within_compiler_variation(row: ProfileRow, other: ProfileRow) -> bool:
    """Return whether two profiles of a variant differ by no more than two runs of the compiler.

    Counts that the algorithm determines (arithmetic, global memory, barriers) must be equal; others may differ
    slightly.
    """
    if row.terms != other.terms or abs(row.registers - other.registers) > _REGISTERS_VARY:
        return False
    first, second = (dict(zip(r.metrics, r.counts, strict=True)) for r in (row, other))
    nothing = np.zeros(len(row.terms))
    slack = _COUNTS_VARY * max(first["issue"].sum(), second["issue"].sum())
    for metric in {*first, *second}:
        difference = np.abs(first.get(metric, nothing) - second.get(metric, nothing)).max()
        allowed = slack * (32 if metric == "lanes" else 1)  # an instruction counts 32 lanes
        if difference > (0.0 if metric.startswith(_FIXED) else allowed):
            return False
    return True
