"""Name the compiled engine by a hash of its sources, so that an outdated engine is never loaded.

`hatch_build.py` runs this file without installing the package.
"""

import hashlib
import importlib.machinery
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PATTERN = "_engine.*"
"""File name pattern of all compiled engines."""

STABLE_ABI = sys.version_info >= (3, 12) and ".abi3.so" in importlib.machinery.EXTENSION_SUFFIXES
"""Whether one compiled engine works with all Python versions from 3.12 on."""

_SUFFIX = ".abi3.so" if STABLE_ABI else importlib.machinery.EXTENSION_SUFFIXES[0]


def sources(root: Path) -> list[Path]:
    """Return the C++ source files in the folder `engine`, which an installed package does not have."""
    return sorted(path for path in (root / "engine").rglob("*") if path.suffix in (".cpp", ".h"))


def file_name(root: Path) -> str:
    """Return the name of the engine's file, which depends on the Python version and the engine's source code."""
    digest, start = hashlib.sha256(), len((root / "engine").as_posix()) - len("engine")
    for path in sources(root):
        # Every command in a checkout computes this hash, so avoid slower calls such as `path.relative_to`.
        with open(path, "rb", buffering=0) as file:
            content = file.read()
        if b"\r" in content:
            content = content.replace(b"\r\n", b"\n")
        digest.update(b"%s %d\n" % (path.as_posix()[start:].encode(), len(content)))
        digest.update(content)
    return PATTERN.replace("*", digest.hexdigest()[:16] + _SUFFIX)


def find() -> Path | None:
    """Return the path of the compiled engine, or None if it is missing or outdated."""
    root = PACKAGE.parent
    if any((root / "engine").glob("*.cpp")):
        path = PACKAGE / file_name(root)
        return path if path.exists() else None
    return next((path for path in sorted(PACKAGE.glob(PATTERN)) if path.name.endswith(_SUFFIX)), None)
