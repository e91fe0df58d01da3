"""Errors of emulated kernels, with their location."""

from kernrec.errors import KernrecError
from kernrec.ptx.ir.program import Function, Instruction


class EmulationError(KernrecError):
    """The kernel does something illegal, or needs an unsupported feature; the message names the location."""


class BudgetError(EmulationError):
    """A batch of blocks exceeded its instruction budget."""


def location(function: Function, ins: Instruction) -> str:
    """Return the location of an instruction for errors: function, PTX line and text."""
    return f"{function.name}, PTX line {ins.line}, `{' '.join(ins.text.split()).rstrip(';')}`"
