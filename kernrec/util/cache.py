"""Cache results that are derived from kernrec's files, if the user's cache folder is writable.

A result is derived again if the hash of its inputs has changed, or if its cache file cannot be read.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernrec import paths
from kernrec.util.files import write_whole
from kernrec.version import __version__

if TYPE_CHECKING:
    import numpy as np

CacheEntry = tuple[Mapping[str, Any], Mapping[str, "np.ndarray"]]
"""JSON values and arrays, each keyed by name, for `array_file.pack`."""


def cached(name: str, made_of: bytes, make: Callable[[], CacheEntry]) -> CacheEntry:
    """Return a cached result, or compute and cache it.

    Args:
        name: name of the cache file.
        made_of: bytes that identify the inputs. If they change, the result is computed again.
    """
    from kernrec.util.array_file import pack, unpack

    path = paths.cache() / "derived" / name
    key = sha256(f"{__version__}\n".encode() + made_of).hexdigest()
    try:
        facts, arrays = unpack(path.read_bytes())
        if facts["key"] == key:
            return facts["facts"], arrays
    except (OSError, ValueError, KeyError, TypeError):
        pass
    made = make()
    if not paths.cache().parent.parent.is_dir():
        return made
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, pack({"key": key, "facts": dict(made[0])}, made[1]))
    return made


def shipped_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file of kernrec. The content is cached as JSON, because JSON is faster to parse."""
    content = path.read_bytes()

    def parse() -> CacheEntry:
        import tomllib

        return tomllib.loads(content.decode()), {}

    return dict(cached(f"{path.parent.name}.{path.stem}", content, parse)[0])
