"""Which Triton is installed, without importing it: that takes a second, and only worker processes do."""

import sys
from functools import cache as once

from kernrec.compile.compiled import NoCompilerError
from kernrec.util.optional import require_optional

OLDEST = (3, 4)
TESTED = ("3.4", "3.9")
"""Releases of Triton that the tests have run with."""


@once
def triton_compiler() -> str:
    """The compiler of Triton sources, such as `triton 3.9.0`; raises `NoCompilerError`."""
    from importlib.metadata import version

    if sys.platform == "darwin":
        raise NoCompilerError("Triton has no compiler for macOS: analyze Triton kernels on Linux")
    try:
        require_optional(["triton"], "compiling a Triton kernel", "triton")
    except Exception as error:
        raise NoCompilerError(str(error)) from None
    installed = version("triton")
    if _release(installed) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise NoCompilerError(
            f"Triton {installed} is installed; {oldest} or later is needed: `pip install '.[triton]'`"
        )
    return f"triton {installed}"


def has_triton() -> bool:
    """Whether Triton sources can be compiled here."""
    try:
        triton_compiler()
    except NoCompilerError:
        return False
    return True


def untested_version() -> str | None:
    """A note on a Triton that the tests have not run with; None for one that they have."""
    installed = triton_compiler().removeprefix("triton ")
    if ".".join(map(str, _release(installed))) in TESTED:
        return None
    return f"Triton {installed} was not tested with this kernrec; tested: {', '.join(TESTED)}"


def _release(version: str) -> tuple[int, ...]:
    """(major, minor) of a version."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
