"""Registers per thread at launch, which warps of a block can exchange (PTX ISA, "setmaxnreg").

`.maxnreg` sets the number. Otherwise it is the maximum with which the blocks of `.maxntid` and `.minnctapersm` fit, as
in the assembler (`ptxas -v` reports 168 and 128 for kernels of 384 and 512 threads). Without these directives, the
number is unknown.
"""

from collections.abc import Mapping, Sequence
from math import prod

WARP = 32
"""Threads of a warp."""
_OF_SM = 65536  # registers per SM
_MOST, _UNIT = 256, 8  # maximum and granularity of a request, per thread


def warps_of(block: Sequence[int]) -> int:
    """Return the number of warps of a block with these extents."""
    return max(-(-prod(block) // WARP), 1)


def registers_at_launch(directives: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the registers per thread at the start of a kernel; None if its directives do not determine them."""
    if "maxnreg" in directives:
        return -(-directives["maxnreg"][0] // _UNIT) * _UNIT
    threads = directives.get("reqntid") or directives.get("maxntid")
    if not threads:
        return None
    warps = warps_of(threads) * directives.get("minnctapersm", (1,))[0]
    return min(_OF_SM // (warps * WARP) // _UNIT * _UNIT, _MOST)
