"""How much work a piece of code is, counted instead of timed: a busy machine changes no count."""

import sys
from collections.abc import Callable
from types import FrameType


def calls(work: Callable[[], object]) -> int:
    """The calls, of Python functions and of C functions by name, that `work` makes.

    Operators on arrays are not counted, so code that handles arrays as a whole has a count that does not grow with
    their sizes.
    """
    count = 0

    def event(frame: FrameType, kind: str, argument: object) -> None:
        nonlocal count
        count += kind in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(event)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
