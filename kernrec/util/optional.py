"""Import optional libraries of the package's extras on demand, with a clear error if they are missing."""

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from kernrec.errors import KernrecError


def import_optional(module: str, purpose: str, extra: str) -> Any:
    """Import a library that may not be installed.

    Args:
        module: Import name, such as `xgboost`.
        purpose: Purpose as the beginning of the error message: "training a model".
        extra: Extra of this package that installs the library.

    Raises:
        KernrecError: The library is not installed. The message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _not_installed(error.name or module, purpose, extra) from None


def require_optional(modules: Sequence[str], purpose: str, extra: str) -> None:
    """Check that packages are installed, without importing them, before work that would otherwise be lost.

    Arguments and errors are those of `import_optional`.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise _not_installed(module, purpose, extra)


def _not_installed(module: str, purpose: str, extra: str) -> KernrecError:
    return KernrecError(f"{purpose} needs {module}: install it with `pip install '.[{extra}]'`")
