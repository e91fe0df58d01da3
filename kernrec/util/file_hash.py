"""Hash the content of several files, such as the sources of a result."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path


def files_hash(root: Path, files: Iterable[Path]) -> str:
    """Return the SHA-256, in hexadecimal, of the paths below `root` and the contents of files, in any order."""
    digest = sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()
