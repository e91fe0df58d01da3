"""What was made from a file that ships with kernrec, kept in the user's cache: read again sooner than made again.

A thing is kept with a hash of all that it was made of, and one that does not match is made anew: a cache is never out
of date. A file appears whole or not at all; one that cannot be read, for whatever reason, counts as absent, and a
folder that cannot be written is no error; a home that does not exist is not made.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from kernrec import paths
from kernrec.util.array_file import pack, unpack
from kernrec.util.atomic_write import write_whole
from kernrec.version import __version__

Kept = tuple[Mapping[str, Any], Mapping[str, np.ndarray]]
"""Facts, which JSON can hold, and arrays; as for `array_file.pack`."""


def kept(name: str, made_of: bytes, make: Callable[[], Kept]) -> Kept:
    """What `make` gives, or gave when it was last asked for this `name` with the same `made_of`.

    name: of the file in the cache; a later version of what it is made of takes its place.
    """
    path = paths.cache() / "kept" / name
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
    """The content of a TOML file that ships with kernrec; JSON, as which it is kept, is parsed fifty times as fast."""
    content = path.read_bytes()

    def parse() -> Kept:
        import tomllib

        return tomllib.loads(content.decode()), {}

    return dict(kept(f"{path.parent.name}.{path.stem}", content, parse)[0])
