"""Cache results of compilations on disk in compressed files, which processes can share.

Failures are cached, too, so the same job fails at once with the compiler's message. Files are written atomically, and
an unreadable file counts as missing. If the folder is not writable, nothing is cached.
"""

import json
import zlib
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from kernrec import paths
from kernrec.compile.compiled import Compiled, CompileError, Resources, Result
from kernrec.util.files import write_whole

_FORMAT = "kernrec compile cache 1"


class CompileCache:
    """Cached results under `folder`, by key. If `folder` is None, nothing is cached."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def default(cls) -> "CompileCache":
        """Return the user's cache."""
        return cls(paths.cache() / "compile")

    @staticmethod
    def key(*parts: str) -> str:
        """Return a hash of all inputs of a result. Lengths separate the parts."""
        text = "".join(f"{len(part)}:{part}" for part in (_FORMAT, *parts))
        return sha256(text.encode()).hexdigest()

    def get(self, key: str) -> Result | None:
        """Return the result under `key`, or None."""
        if self.folder is None:
            return None
        try:
            return _decode(self._path(self.folder, key).read_bytes())
        except (OSError, ValueError, KeyError, TypeError, zlib.error):
            return None

    def put(self, key: str, result: Result) -> None:
        """Write `result` under `key`, if the folder is writable."""
        if self.folder is None:
            return
        path = self._path(self.folder, key)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, _encode(result))

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}.z"


def _encode(result: Result) -> bytes:
    if isinstance(result, CompileError):
        return zlib.compress(json.dumps({"refused": str(result), "log": result.log}).encode(), level=3)
    header = {
        "resources": {entry: asdict(resources) for entry, resources in result.resources.items()},
        "compiler": result.compiler,
        "log": result.log,
        "ptx": result.ptx,
    }
    # zlib's checksum makes decompression fail for a truncated or altered file.
    return zlib.compress(json.dumps(header).encode() + b"\n" + result.cubin, level=3)


def _decode(data: bytes) -> Result:
    header, _, cubin = zlib.decompress(data).partition(b"\n")
    fields = json.loads(header)
    if "refused" in fields:
        return CompileError(fields["refused"], fields["log"])
    resources = {entry: Resources(**values) for entry, values in fields["resources"].items()}
    return Compiled(fields["ptx"], cubin, resources, fields["compiler"], fields["log"])
