"""Registers of a thread at the launch, which warps of a block may give to one another (PTX ISA, "setmaxnreg").

A kernel states them by `.maxnreg`. Otherwise as many as leave room for the blocks that `.maxntid` and `.minnctapersm`
promise, which is what the assembler takes (`ptxas -v` of kernels of 384 and 512 threads says 168 and 128). If neither
is stated, they are not known.
"""

from collections.abc import Mapping
from math import prod

WARP = 32
"""Threads of a warp."""
_OF_SM = 65536  # registers of an SM
_MOST, _UNIT = 256, 8  # that a warp can ask for, each thread


def registers_at_launch(directives: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the registers of each thread when a kernel begins; None if its directives do not say."""
    if "maxnreg" in directives:
        return -(-directives["maxnreg"][0] // _UNIT) * _UNIT
    threads = directives.get("reqntid") or directives.get("maxntid")
    if not threads:
        return None
    warps = -(-prod(threads) // WARP) * directives.get("minnctapersm", (1,))[0]
    return min(_OF_SM // (warps * WARP) // _UNIT * _UNIT, _MOST)
