"""Which kernrec a machine has: machines whose sources differ do not measure in one campaign."""

from functools import cache
from hashlib import sha256
from pathlib import Path

from kernrec.version import __version__

_PACKAGE = Path(__file__).resolve().parents[1]
_SUFFIXES = (".py", ".cu", ".cuh", ".toml")


@cache
def sources_hash() -> str:
    """The version of kernrec with a hash of its sources and kernels."""
    digest = sha256()
    for path in sorted(_PACKAGE.rglob("*")):
        if path.suffix in _SUFFIXES:
            digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\n" + path.read_bytes())
    return f"{__version__}-{digest.hexdigest()[:12]}"
