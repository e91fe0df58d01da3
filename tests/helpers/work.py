"""Measures the work of code by counting calls, which do not depend on machine load."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType


def calls(work: Callable[[], object]) -> int:
    """Count the Python and C function calls that `work` makes, by name, without operators on arrays."""
    count = 0

    def event(frame: FrameType, kind: str, argument: object) -> None:
        nonlocal count
        count += kind in ("call", "c_call")

    _profile(work, event)
    return count


def entered(work: Callable[[], object], parameter: str) -> set[str]:
    """Run `work`, and return the names of all called Python functions that have the parameter."""
    functions: set[CodeType] = set()

    def event(frame: FrameType, kind: str, argument: object) -> None:
        code = frame.f_code
        if kind == "call" and parameter in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            functions.add(code)

    _profile(work, event)
    return {f"{code.co_filename}:{code.co_firstlineno} {code.co_name}" for code in functions}


def _profile(work: Callable[[], object], event: Callable[[FrameType, str, object], None]) -> None:
    before = sys.getprofile()
    sys.setprofile(event)
    try:
        work()
    finally:
        sys.setprofile(before)
