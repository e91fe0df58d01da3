"""Convert predictions of calls timed one at a time to calls in a stream.

A call between two events also includes the host's time. The time of an empty call is the floor. Work on the GPU hides
the floor: in a call that takes twice the floor, half of the floor remains (additions of large tensors on A100, V100, T4
and P4), in long calls little. Calls in a stream or a CUDA graph only include the start of a launch:

    stream = start + max(call - floor**2 / call, work)

where the work is the bound times a ratio that fits the recordings. Recordings do not show which part of a call near the
floor the GPU took, so the interval covers both extremes.
"""

from kernrec.model.prior.microarchitecture import LAUNCH_S, START_S
from kernrec.model.prior.spread import INTERVAL, Estimate

NORMAL_S = LAUNCH_S + START_S
"""Seconds that the start of a launch takes in a stream, as for kernrec's kernels."""


def in_a_stream(call: Estimate, floor_s: float, work_s: float) -> Estimate:
    """Return a call's latency in a stream of calls, which never exceeds the latency of a single call.

    Args:
        call: Latency of the call timed alone.
        floor_s: Seconds of the recorder's floor.
        work_s: Expected seconds of work on the GPU.
    """
    value = min(NORMAL_S + max(call.value - floor_s * floor_s / call.value, work_s), call.value)
    low = min(value * call.low / call.value, NORMAL_S + max(call.low - floor_s, work_s / INTERVAL))
    return Estimate(value, low, call.high, call.source)
