"""Which instructions there are: modules of semantics register here how theirs are executed.

Most instructions are *elementwise*: a NumPy function of rows into a row (`@elementwise(opcodes...)`). The others look
across lanes or at memory, and become one step, a callable without arguments that closes over the rows it works on
(`@steps(opcodes...)`). A module that adds instructions needs no change elsewhere.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kernrec.ptx.ir.operand import Operand
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.types import Array

Step = Callable[[], object]
"""Executes one instruction, or several packed ones, for the lanes that run."""

Compute = Callable[..., object]
"""`compute(*sources, out)` on arrays of any shape."""


class Elementwise(NamedTuple):
    """An instruction that computes lane by lane: `function(*sources, destination)`."""

    function: Compute
    destination: Operand
    type: str
    """PTX type of the result."""

    sources: tuple[Operand, ...]
    source_types: tuple[str, ...]


ElementwiseBuilder = Callable[[Instruction], "Elementwise | list[Elementwise]"]
StepBuilder = Callable[..., "Step | None"]
"""Makes the step of an instruction from a `decoder.BlockDecoder` and the instruction; None when the step before took it
in (`BlockDecoder.last_step`)."""

ELEMENTWISE: dict[str, ElementwiseBuilder] = {}
"""By opcode: instructions that compute lane by lane."""

STEPS: dict[str, StepBuilder] = {}
"""By opcode: the others."""


class UnsupportedInstructionError(EmulationError):
    """The emulator does not support this instruction, or this form of it."""


class UnsupportedFormError(Exception):
    """Raised by a builder for a form of an instruction that it does not support; the text says what of it."""


def elementwise(*opcodes: str) -> Callable[[ElementwiseBuilder], ElementwiseBuilder]:
    """Registers a builder for opcodes that compute lane by lane."""

    def register(builder: ElementwiseBuilder) -> ElementwiseBuilder:
        ELEMENTWISE.update(dict.fromkeys(opcodes, builder))
        return builder

    return register


def steps(*opcodes: str) -> Callable[[StepBuilder], StepBuilder]:
    """Registers a builder for opcodes that look across lanes or at memory; `st.async`: for those with this modifier
    first."""

    def register(builder: StepBuilder) -> StepBuilder:
        STEPS.update(dict.fromkeys(opcodes, builder))
        return builder

    return register


def lanewise(ins: Instruction, function: Compute, kind: str, *source_types: str) -> Elementwise:
    """An instruction whose first operand is its result, of type `kind`, and whose others are its sources, by default of
    the same type."""
    return Elementwise(
        function, ins.operands[0], kind, ins.operands[1:], source_types or (kind,) * (len(ins.operands) - 1)
    )


def same_type(table: dict[str, Compute]) -> None:
    """Registers computations by opcode whose operands all have the type that the last modifier names."""
    elementwise(*table)(lambda ins: lanewise(ins, table[ins.opcode], ins.modifiers[-1]))


def known_opcodes() -> frozenset[str]:
    """Opcodes with registered semantics; control flow is executed by the emulator itself."""
    return frozenset(ELEMENTWISE) | frozenset(STEPS)


def copy_row(a: Array, out: Array) -> None:
    """`out = a`."""
    np.copyto(out, a)
