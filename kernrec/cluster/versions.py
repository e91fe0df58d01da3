"""Identify kernrec's sources on a machine, because all machines of a campaign must have the same sources."""

from functools import cache
from pathlib import Path

from kernrec.util.file_hash import files_hash
from kernrec.version import __version__

_PACKAGE = Path(__file__).resolve().parents[1]
_SUFFIXES = (".py", ".cu", ".cuh", ".toml")


@cache
def sources_hash() -> str:
    """Return kernrec's version with a hash of its sources and kernels."""
    files = (path for path in _PACKAGE.rglob("*") if path.suffix in _SUFFIXES)
    return f"{__version__}-{files_hash(_PACKAGE, files)[:12]}"
