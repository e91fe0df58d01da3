"""One access to memory as an instruction states it."""

from kernrec.ptx.ir.program import Function, Instruction
from kernrec.ptx.state.errors import location
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Access:
    """The fixed part of an access; addresses are known when the instruction runs."""

    function: Function

    ins: Instruction

    space: str
    """State space: `global`, `shared`, `local`, `const`, `param`, `argument`, or `generic`."""

    offset: int
    """Bytes to add to the address in the address register."""

    size: int
    """Bytes per lane; addresses must be a multiple of it."""

    unit: int
    """Bytes of one element; less than `size` for a vector."""

    rows_of_matrices: bool = False
    """Whether each lane moves a row of a matrix (`ldmatrix`, `stmatrix`): eight lanes make one wavefront."""

    merges: bool = False
    """Of an atomic operation: whether it adds one and nobody reads the old value, so that lanes of one word merge."""

    @property
    def location(self) -> str:
        """The instruction as errors name it."""
        return location(self.function, self.ins)
