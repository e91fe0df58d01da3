"""The error of a kernel that does what it must not, and how it names the place."""

from kernrec.errors import KernrecError
from kernrec.ptx.ir.program import Function, Instruction


class EmulationError(KernrecError):
    """A kernel did something it must not, or something that the emulator does not support; the message says where."""


class BudgetError(EmulationError):
    """A batch of blocks executed more instructions than it may."""


def location(function: Function, ins: Instruction) -> str:
    """An instruction as errors name it: function, PTX line and text."""
    return f"{function.name}, PTX line {ins.line}, `{' '.join(ins.text.split()).rstrip(';')}`"
