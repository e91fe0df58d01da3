"""Predictions from calls that were timed one at a time, as calls in a stream.

A call between two events takes the host's time too: that of an empty one is the floor. Work on the card hides it: of
additions of large tensors half of the floor is left in a call of twice its time (A100, V100, T4, P4), little in long
ones. In a stream of calls or a CUDA graph there is none of it, only the start of a launch:

    stream = start + max(call - floor**2 / call, work)

with the work that such calls have: the bound's times the ratio that fits the recordings. How much of a call near the
floor was the card's nobody recorded: the interval goes from all of the floor being the host's to none of it.
"""

from kernrec.model.prior.constants import LAUNCH_S, START_S
from kernrec.model.prior.spread import INTERVAL
from kernrec.model.vendor.predicted import Predicted

NORMAL_S = LAUNCH_S + START_S
"""Start of a launch in a stream, as that of our own kernels."""


def in_a_stream(call: Predicted, floor_s: float, work_s: float) -> Predicted:
    """A call's latency as that of one in a stream of them; it is never longer.

    Args:
        call: as it would be timed alone.
        floor_s: of the recorder.
        work_s: the expected time of the card's work.
    """
    value = min(NORMAL_S + max(call.value - floor_s * floor_s / call.value, work_s), call.value)
    low = min(value * call.low / call.value, NORMAL_S + max(call.low - floor_s, work_s / INTERVAL))
    return Predicted(value, low, call.high, call.transferred)
