"""Define the counts and errors of an emulation."""

import re
from typing import Any

from numpy.typing import NDArray

from kernrec.errors import KernrecError
from kernrec.ptx.ir.operand import BITS, REGISTER_TYPES
from kernrec.ptx.ir.program import Function, Instruction

OUTSIDE = re.compile(r"accesses (\d+) bytes at offset (-?\d+) of (.+), which has (\d+) bytes")
"""Matches the message for an access outside a buffer. Groups: bytes of the access, offset, buffer, buffer size."""


class EmulationError(KernrecError):
    """Illegal operation or unsupported feature of a kernel. The message states the location."""


class BudgetError(EmulationError):
    """Error for a batch of blocks that executes too many instructions."""


def location(function: Function, ins: Instruction) -> str:
    """Return an instruction's function, PTX line and text for an error message."""
    return f"{function.name}, PTX line {ins.line}, `{' '.join(ins.text.split()).rstrip(';')}`"


Array = NDArray[Any]


def register_width(kind: str) -> int:
    """Return the bits of a register. Raise `EmulationError` if the emulator does not support the type."""
    if kind not in REGISTER_TYPES or kind == "b128":
        raise EmulationError(f"registers of type .{kind} are not supported")
    return BITS[kind]


class Counts(dict[str, float]):
    """Totals of events by metric. A missing metric is 0."""

    def __missing__(self, key: str) -> float:
        return 0

    def bump(self, key: str, by: float) -> None:
        self[key] = self.get(key, 0) + by
