"""Environment for new Python processes that import the same modules as the tests."""

import os
import sys


def environment(**changed: str) -> dict[str, str]:
    """Return this process's environment variables with its module search path, updated by `changed`."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | changed
