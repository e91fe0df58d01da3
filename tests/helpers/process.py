"""Fresh Python processes that import what the tests do."""

import os
import sys


def environment(**changed: str) -> dict[str, str]:
    """The variables of this process, with a module search path like its own, and `changed`."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | changed
