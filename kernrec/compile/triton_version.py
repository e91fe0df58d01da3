"""Find the installed version of Triton without importing it, because an import takes a second."""

import os
import sys
from collections.abc import Iterable
from functools import cache as once
from importlib import import_module
from operator import attrgetter

from kernrec.compile.compiled import NoCompilerError
from kernrec.util.human import Note
from kernrec.util.optional import require_optional

OLDEST = (3, 4)
_UNFUSED = (3, 10)  # The first release that does not fuse multiply-adds by default, as Triton 3.9 announces
TESTED = ("3.4", "3.8", "3.9")
"""Releases of Triton that kernrec's tests cover."""

_INTERFACES = (
    "triton:compile", "triton.compiler:ASTSource", "triton.compiler.compiler:CompiledKernel.__getitem__",
    "triton.compiler.errors:CompilationError", "triton.backends:backends", "triton.backends.compiler:GPUTarget",
    "triton.runtime.autotuner:Autotuner.prune_configs", "triton.runtime.autotuner:Autotuner.run",
    "triton.runtime.cache:FileCacheManager.put", "triton.runtime.driver:driver.set_active",
    "triton.runtime.jit:JITFunction.run",
)  # fmt: skip
"""Names in Triton's modules that kernrec uses, as module:name."""


@once
def triton_compiler() -> str:
    """Return Triton's name and version, such as `triton 3.9.0`. Raise `NoCompilerError` if it is not installed."""
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
    """Return whether Triton fuses multiplication and addition by default, as releases before 3.10 do.

    TRITON_DEFAULT_FP_FUSION and TRITON_FORCE_DISABLE_FP_FUSION override the default.
    """
    if _switch("TRITON_FORCE_DISABLE_FP_FUSION", False):
        return False
    return _switch("TRITON_DEFAULT_FP_FUSION", _release(triton_compiler().removeprefix("triton ")) < _UNFUSED)


def _switch(variable: str, default: bool) -> bool:
    value = os.environ.get(variable)
    return default if value is None else value.lower() in ("1", "true", "yes", "on", "y")


def fp_fusion_note() -> str | None:
    """Return a note on whether Triton fuses multiplication and addition. Return None if the environment decides."""
    if any(name in os.environ for name in ("TRITON_DEFAULT_FP_FUSION", "TRITON_FORCE_DISABLE_FP_FUSION")):
        return None
    how = "fused into one instruction" if fp_fusion() else "two instructions"
    other = "Triton 3.10 and later do not fuse them" if fp_fusion() else "Triton before 3.10 fuses them"
    return Note(
        f"a multiplication and an addition are {how}, as {triton_compiler()} does by default",
        f"{other}. TRITON_DEFAULT_FP_FUSION changes it.",
    )


def has_triton() -> bool:
    """Return whether this machine can compile Triton sources."""
    try:
        triton_compiler()
    except NoCompilerError:
        return False
    return True


def untested_version() -> str | None:
    """Return a note if the installed version of Triton was not tested, or None."""
    installed = triton_compiler().removeprefix("triton ")
    if ".".join(map(str, _release(installed))) in TESTED:
        return None
    return f"Triton {installed} was not tested with this kernrec; tested: {', '.join(TESTED)}"


@once
def check_interfaces() -> str:
    """Return Triton's name and version. Raise `NoCompilerError` if Triton lacks an interface that kernrec uses."""
    compiler = triton_compiler()
    if missing := missing_name(_INTERFACES):
        raise NoCompilerError(
            f"{compiler} has no {missing}, which kernrec uses; install one of the tested releases: {', '.join(TESTED)}"
        )
    return compiler


def missing_name(names: Iterable[str]) -> str | None:
    """Return the first of the names (module:name) that does not exist, or None."""
    for place in names:
        module, _, name = place.partition(":")
        try:
            attrgetter(name)(import_module(module))
        except (AttributeError, ImportError):
            return f"{module}.{name}"
    return None


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
