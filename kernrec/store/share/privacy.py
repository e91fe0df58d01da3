"""Remove private values from rows that leave a machine: names of user and machine, GPU UUIDs, paths.

A row contains a hash of the GPU's UUID, which distinguishes the rows of several GPUs. When a row leaves, this hash is
combined with a secret beside the database and hashed again, so that nobody else can link the row to the GPU. Folders,
UUIDs of GPUs, and the names of user and host are removed from errors and compiler options.
"""

import getpass
import os
import re
import socket
from contextlib import suppress
from pathlib import Path

from kernrec.errors import UsageError, file_errors
from kernrec.store.connection import quoted

PRIVATE = ("device_uuid_hash", "error", "compiler_flags", "measured_by")
"""Columns of `measurement` that may change; rows that differ only in these columns are the same measurement."""

_FOLDERS = r"(?:[A-Za-z]:)?(?:[\\/]+[^\\/\s:\"'']+)+[\\/]+"
"""Matches the folders of an absolute path, before its last part."""
_UUID = r"(?i)\b(?:(?:GPU|MIG)-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
"""Matches the UUID of a GPU or MIG slice in drivers' errors."""

_CONTROL = r"[\x00-\x1f\x7f-\x9f]+"


def secret_of(database: Path) -> str:
    """Return the secret beside a database, created on first use; raise `UsageError` if there is no database."""
    if not database.exists():
        raise UsageError(f"there is no database at {database}")
    path = database.with_name(f"{database.name}.secret")
    with file_errors(path, "written"):
        with suppress(FileNotFoundError):
            return path.read_text(encoding="ascii")
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(secret := os.urandom(16).hex(), encoding="ascii")
    return secret


def private_names() -> list[str]:
    """Return the names of the user and of this machine, which must not leave."""
    names = {socket.gethostname(), socket.gethostname().partition(".")[0], Path.home().name}
    with suppress(Exception):  # Some containers have no user name.
        names.add(getpass.getuser())
    # Keep common words and single letters, which identify nobody: removing `root` would make errors unreadable.
    words = [name for name in names if len(name) > 1 and name not in ("root", "home", "localhost")]
    return sorted(words, key=len)[::-1]


def public_column(name: str, secret: str) -> str:
    """Return SQL for a column of `measurement` without private values."""
    column = f'"{name}"'
    if name == "device_uuid_hash":
        return f"substr(sha256({quoted(secret)} || {column}), 1, 16)"
    if name in PRIVATE:
        text = _without(column, _CONTROL, " ")
        text = _without(text, _FOLDERS)
        text = _without(text, _UUID, "-")
        for word in private_names():
            text = _without(text, rf"(?i)\b{re.escape(word)}\b", "-")
        return text
    return column


def _without(text: str, pattern: str, instead: str = "") -> str:
    return f"regexp_replace({text}, {quoted(pattern)}, {quoted(instead)}, 'g')"
