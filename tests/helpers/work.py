"""Measures the work of code by counting calls, which do not depend on machine load."""

import sys
from collections.abc import Callable
from types import FrameType


def calls(work: Callable[[], object]) -> int:
    """Count the Python and C function calls that `work` makes, by name, without operators on arrays."""
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
