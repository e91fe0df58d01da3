"""Import optional libraries on first use, with a clear error if a library is missing."""

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from kernrec.errors import KernrecError


def import_optional(module: str, purpose: str, extra: str) -> Any:
    """Import a library that may not be installed.

    Args:
        module: import name, such as `xgboost`.
        purpose: what needs the library, as the beginning of the message, such as "training a model".
        extra: extra of kernrec that installs the library.

    Raises:
        KernrecError: the library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _not_installed(error.name or module, purpose, extra) from None


def require_optional(modules: Sequence[str], purpose: str, extra: str) -> None:
    """Raise `KernrecError` if a library is not installed. Call this function before work that takes long."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise _not_installed(module, purpose, extra)


def _not_installed(module: str, purpose: str, extra: str) -> KernrecError:
    return KernrecError(f"{purpose} needs {module}: install it with `pip install '.[{extra}]'`")
