"""Libraries that an extra of the package brings: imported where they are needed, with a clear error without them."""

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from kernrec.errors import KernrecError


def import_optional(module: str, purpose: str, extra: str) -> Any:
    """Import a library that may not be installed.

    Args:
        module: its import name, such as `xgboost`.
        purpose: of the library, as the beginning of the error message: "training a model".
        extra: the extra of this package that installs it.

    Raises:
        KernrecError: the library is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _not_installed(error.name or module, purpose, extra) from None


def require_optional(modules: Sequence[str], purpose: str, extra: str) -> None:
    """Check that whole packages are installed before work begins that would be lost without them; imports none.

    Arguments and errors are those of `import_optional`.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise _not_installed(module, purpose, extra)


def _not_installed(module: str, purpose: str, extra: str) -> KernrecError:
    return KernrecError(f"{purpose} needs {module}: install it with `pip install '.[{extra}]'`")
