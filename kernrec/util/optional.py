"""Libraries that an extra of the package brings: imported where they are needed, with a clear error without them."""

import importlib
from typing import Any

from kernrec.errors import KernrecError


def import_optional(module: str, purpose: str, extra: str) -> Any:
    """Import a library that may not be installed.

    Args:
        module: its import name, such as `xgboost`.
        purpose: what needs it, as the beginning of the error message: "training a model".
        extra: the extra of this package that installs it.

    Raises:
        KernrecError: the library is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise KernrecError(f"{purpose} needs {missing}: install it with `pip install '.[{extra}]'`") from None
