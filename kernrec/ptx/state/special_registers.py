"""Define the special registers (`%tid.x`, `%laneid`, ...): names, widths, and values common to all launches."""

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
    # The carry of extended-precision arithmetic, and the next carry while it is computed.
    **{"%carry": 0, "%carry_next": 0},
}
"""Values of the special registers that are equal in every launch."""


_OF_LANE = ("%laneid", "%warpid", *(f"%lanemask_{which}" for which in ("eq", "lt", "le", "ge", "gt")))
_NAMES = frozenset({*_OF_LAUNCH, *FIXED, *_OF_LANE, *_OF_CLUSTER, "%nwarpid"})


def is_special(name: str) -> bool:
    """Return whether the emulator has a special register of this name."""
    base, dot, axis = name.partition(".")
    return base in (*_COORDINATES, *_CLUSTER_COORDINATES) and axis in ("x", "y", "z") if dot else name in _NAMES


def special_width(name: str) -> int:
    """Return the bits of a special register."""
    return 1 if name == "%is_explicit_cluster" else 64 if name in _WIDE else 32
