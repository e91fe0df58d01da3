"""What to do about a config: the best change, else what its bottleneck leaves to be done."""

from collections.abc import Sequence

from kernrec.recommender.explain.breakdown import Explanation
from kernrec.recommender.explain.what_if import Change

NEAR_ROOF = 0.7
"""Share of the roof from which no config of any kernel gains much more: 1.4 times at most."""

_REMEDIES = {
    "issue": "fewer instructions for the same work: wider loads (vector), more results per thread, deeper unrolling",
    "fma": "it computes most of the time: a data type that tensor cores multiply does so several times faster",
    "int": "fewer index computations: more results per thread, sizes that divide the tile",
    "special": "fewer exponentials and divisions, or cheaper forms of them, in the kernel itself",
    "f64": "32-bit floats where they are precise enough: with two f64 lanes to an SM they are 32 or 64 times faster",
    "tensor": "it computes most of the time: a narrower data type is what makes it faster",
    "LSU": "wider loads (vector), and more results per thread for what is loaded",
    "shared memory": "larger tiles per warp, or a layout without bank conflicts",
    "L1": "accesses that are contiguous within a warp, and larger tiles",
    "L2": "larger tiles, or an order of blocks (raster) that reuses what L2 holds",
    "DRAM": "fewer bytes: a narrower data type, or fusing it with the layer before or after it",
    "latency": "more warps or more stages in flight; of small problems, several at once (a larger batch)",
    "launch": "the launch itself takes longest: fuse it with a neighbor, batch calls, or use a CUDA graph",
}
"""By bottleneck, what is beyond the tunables of the kernel."""


def advice(subject: Explanation, changes: Sequence[Change], objective: str) -> str:
    """A sentence on what to do about a config.

    Args:
        subject: the config.
        changes: what would gain most, best first.
        objective: what the gain is in.
    """
    bottleneck = subject.choice.bottleneck
    if changes:
        best = changes[0]
        text = f"change {best.what}: {100 * best.gain:.1f} % less {_counted(objective)}"
        if best.source == "measured":
            return f"{text}, as measured"
        return f"{text} is expected; measure both, for predictions of single configs are less sure than that"
    roof = subject.roofline
    share = roof.achieved_flops / roof.attainable_flops if roof.attainable_flops else 0.0
    reached = f"nothing in this kernel's tunables; limited by {bottleneck}"
    if share >= NEAR_ROOF:
        reached += f", at {100 * share:.0f} % of the roof, so no other config can gain much"
    return f"{reached}: {_REMEDIES[bottleneck]}"


def _counted(objective: str) -> str:
    return {"latency": "time", "edp": "energy x time"}.get(objective, objective)
