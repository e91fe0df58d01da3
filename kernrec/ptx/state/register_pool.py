"""Registers that warps of a block give to one another: `setmaxnreg` (PTX ISA, section "setmaxnreg").

A block has the registers that its launch gave to all its warps. A warp that asks for more waits until others have given
enough back. Results do not change here; but where the warps of a block ask for more in all than there are,
one waits for ever on the machine, and that is an error.

Registers of a thread at the launch: what `.maxnreg` says; else as many as leave room for the blocks that `.maxntid` and
`.minnctapersm` promise, which is what the assembler takes (`ptxas -v` of kernels of 384 and 512 threads says 168 and
128). Where neither is stated they are not known, and sums are not checked.
"""

from collections.abc import Mapping
from math import prod

from kernrec.ptx.state.batch import WARP, BatchShape
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.types import Array

_OF_SM = 65536  # registers of an SM
_FEWEST, _MOST, _UNIT = 24, 256, 8  # what a warp can ask for, each thread


def registers_at_launch(directives: Mapping[str, tuple[int, ...]]) -> int | None:
    """Registers of each thread when a kernel with these directives begins; None where they do not say."""
    if "maxnreg" in directives:
        return -(-directives["maxnreg"][0] // _UNIT) * _UNIT
    threads = directives.get("reqntid") or directives.get("maxntid")
    if not threads:
        return None
    warps = -(-prod(threads) // WARP) * directives.get("minnctapersm", (1,))[0]
    return min(_OF_SM // (warps * WARP) // _UNIT * _UNIT, _MOST)


class RegisterPool:
    """The registers of each thread of the warps of a batch."""

    def __init__(self, shape: BatchShape) -> None:
        self._warps_per_block = shape.lanes_per_block // WARP
        self._at_launch: int | None = None
        self._held: dict[int, int] = {}  # by warp: what it changed its registers to
        self._raised: dict[int, str] = {}  # by warp: the instruction that asked for more

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self._held.clear()
        self._raised.clear()

    def begin(self, directives: Mapping[str, tuple[int, ...]]) -> None:
        """A kernel with these directives moves registers."""
        self._at_launch = registers_at_launch(directives)

    def move(self, site: str, warps: Array, registers: int, *, grows: bool) -> None:
        """Warps have so many registers a thread from now on.

        Raises:
            EmulationError: not a number that a warp can have, or fewer where it asks for more, or the other way round.
        """
        if registers % _UNIT or not _FEWEST <= registers <= _MOST:
            raise EmulationError(f"{site}: {registers} registers, where a multiple of 8 from 24 to 256 is expected")
        for warp in warps.tolist():
            held = self._held.get(warp, self._at_launch)
            if held is not None and (held > registers if grows else held < registers):
                change = "more" if grows else "less"
                raise EmulationError(f"{site}: {registers} registers are not {change} than the {held} of a thread")
            self._held[warp] = registers
            if grows:
                self._raised[warp] = site

    def check_granted(self) -> None:
        """All threads ended.

        Raises:
            EmulationError: the warps of a block asked for more registers than it has.
        """
        if self._at_launch is None:
            return
        there = self._at_launch * self._warps_per_block
        for warp, site in self._raised.items():
            first = warp // self._warps_per_block * self._warps_per_block
            of_block = range(first, first + self._warps_per_block)
            wanted = sum(self._held.get(other, self._at_launch) for other in of_block)
            if wanted > there:
                raise EmulationError(
                    f"{site}: deadlock: the warps of a block ask for {wanted * WARP} registers in all, of which it has"
                    f" {there * WARP}"
                )
