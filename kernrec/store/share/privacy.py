"""Private values, which never leave a machine: names of its user and of itself, GPU UUIDs, paths.

A row holds the hash of a card's UUID, by which rows of one card are told from those of another. A hash of that hash and
of a secret that stays beside the database leaves, so that nobody else can link it to the card. Texts of
errors and compiler options lose their folders, UUIDs of cards, and the names of user and host.
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
"""Columns of `measurement` that may leave in another form; rows that differ in them alone are the same measurement."""

_FOLDERS = r"(?:[A-Za-z]:)?(?:[\\/]+[^\\/\s:\"'']+)+[\\/]+"
"""The folders of an absolute path, before its last part."""
_UUID = r"(?i)\b(?:(?:GPU|MIG)-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
"""Of a card, or of a part of one, as drivers name them in errors."""

_CONTROL = r"[\x00-\x1f\x7f-\x9f]+"


def secret_of(database: Path) -> str:
    """The secret beside a database, made when first asked for; `UsageError` if there is no database."""
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
    """The names of the user and of this machine that texts must not hold."""
    names = {socket.gethostname(), socket.gethostname().partition(".")[0], Path.home().name}
    with suppress(Exception):  # no name, as in some containers: then none can leak
        names.add(getpass.getuser())
    # A common word or a letter is no name: taking `root` out of an error would only make it unreadable.
    words = [name for name in names if len(name) > 1 and name not in ("root", "home", "localhost")]
    return sorted(words, key=len)[::-1]


def public_column(name: str, secret: str) -> str:
    """A column of `measurement` as it may leave, in SQL."""
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
