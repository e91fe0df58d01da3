"""Define the special registers (`%tid.x`, `%laneid`, ...), and compute the number of registers per thread at launch.

A kernel that moves registers between warps (PTX ISA, "setmaxnreg") may set the number with the directive `.maxnreg`.
Otherwise, the assembler chooses the largest number that fits `.minnctapersm` blocks of `.maxntid` threads on an SM.
"""

from collections.abc import Mapping, Sequence
from math import prod

_COORDINATES = ("%tid", "%ntid", "%ctaid", "%nctaid")
_CLUSTER_COORDINATES = ("%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid")
_OF_CLUSTER = ("%is_explicit_cluster", "%cluster_ctarank", "%cluster_nctarank")
_WIDE = ("%clock64", "%globaltimer")
_OF_LAUNCH = (
    *("%dynamic_smem_size", "%total_smem_size", "%envreg1", "%envreg2"),
    *(f"%reserved_smem_offset_{which}" for which in ("begin", "end", "cap", "0", "1")),
)
FIXED = {
    **{"%smid": 0, "%nsmid": 1, "%gridid": 0, "%clock": 0, "%clock_hi": 0, "%clock64": 0, "%globaltimer": 0},
    # `%carry_next` is the carry flag that the current instruction computes.
    **{"%carry": 0, "%carry_next": 0},
}
"""Values of special registers that are the same in every launch."""


_OF_LANE = ("%laneid", "%warpid", *(f"%lanemask_{which}" for which in ("eq", "lt", "le", "ge", "gt")))
_NAMES = frozenset({*_OF_LAUNCH, *FIXED, *_OF_LANE, *_OF_CLUSTER, "%nwarpid"})


def is_special(name: str) -> bool:
    """Return whether the emulator has a special register with this name."""
    base, dot, axis = name.partition(".")
    return base in (*_COORDINATES, *_CLUSTER_COORDINATES) and axis in ("x", "y", "z") if dot else name in _NAMES


def special_width(name: str) -> int:
    return 1 if name == "%is_explicit_cluster" else 64 if name in _WIDE else 32


WARP = 32
_OF_SM = 65536  # Number of registers of an SM.
_MOST, _UNIT = 256, 8  # Maximum and granularity of the registers per thread that a kernel can request.


def warps_of(block: Sequence[int]) -> int:
    """Return the number of warps of a block with the given extents."""
    return max(-(-prod(block) // WARP), 1)


def registers_at_launch(directives: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the number of registers per thread at launch, or None if the directives do not determine it."""
    if "maxnreg" in directives:
        return -(-directives["maxnreg"][0] // _UNIT) * _UNIT
    threads = directives.get("reqntid") or directives.get("maxntid")
    if not threads:
        return None
    warps = warps_of(threads) * directives.get("minnctapersm", (1,))[0]
    return min(_OF_SM // (warps * WARP) // _UNIT * _UNIT, _MOST)
