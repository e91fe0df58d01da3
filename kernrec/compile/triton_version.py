"""Which Triton is installed, without importing it: that takes a second, and only worker processes do."""

import os
import sys
from functools import cache as once

from kernrec.compile.compiled import NoCompilerError
from kernrec.util.note import Note
from kernrec.util.optional import require_optional

OLDEST = (3, 4)
_UNFUSED = (3, 10)  # the release that no longer fuses products and sums by default, as Triton 3.9 announces
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


def fp_fusion() -> bool:
    """Whether Triton compiles a product and a sum into one instruction here, where a launch does not say it.

    Releases before 3.10 do by default, later ones do not; TRITON_DEFAULT_FP_FUSION and TRITON_FORCE_DISABLE_FP_FUSION
    say otherwise.
    """
    if _switch("TRITON_FORCE_DISABLE_FP_FUSION", False):
        return False
    return _switch("TRITON_DEFAULT_FP_FUSION", _release(triton_compiler().removeprefix("triton ")) < _UNFUSED)


def _switch(variable: str, default: bool) -> bool:
    value = os.environ.get(variable)
    return default if value is None else value.lower() in ("1", "true", "yes", "on", "y")


def fp_fusion_note() -> str | None:
    """A line on how a compile takes products and sums, where the environment does not say it; None where it does."""
    if any(name in os.environ for name in ("TRITON_DEFAULT_FP_FUSION", "TRITON_FORCE_DISABLE_FP_FUSION")):
        return None
    how = "fused into one instruction" if fp_fusion() else "two instructions"
    other = "Triton 3.10 and later do not fuse them" if fp_fusion() else "Triton before 3.10 fuses them"
    return Note(
        f"a product and a sum are {how}, as {triton_compiler()} does by default",
        f"{other}. TRITON_DEFAULT_FP_FUSION changes it.",
    )


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
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
