"""Whose rows are taken: the keys that the user trusts, and the user's own.

~/.config/kernrec/trusted.json     public keys, each with a name of the user's choice
~/.config/kernrec/key              the own private key, readable by the user alone
~/.config/kernrec/key.pub          the own public key
"""

import json
import re
from pathlib import Path
from typing import Any

from kernrec import paths
from kernrec.errors import UsageError, unknown
from kernrec.util.atomic_write import write_whole

KEY = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,40}")
_SHOWN_DIGITS = 12
_LONGEST_KEY = 256
"""Characters of the file of a key that are read."""


def trusted() -> dict[str, str]:
    """The keys that the user trusts, apart from the own, with their names."""
    values = read_settings("trusted.json", list)
    if not all(map(_is_entry, values)):
        raise UsageError(f"{paths.config() / 'trusted.json'} is not a list of keys and names")
    return {str(each["key"]): str(each["name"]) for each in values}


def _is_entry(each: Any) -> bool:
    """Whether a value of the file is a key with its name; names are printed."""
    return (
        isinstance(each, dict)
        and set(each) == {"key", "name"}
        and bool(KEY.fullmatch(str(each["key"])) and NAME.fullmatch(str(each["name"])))
    )


def trust(key: str, name: str | None) -> None:
    """Trust the rows that this key signs.

    Args:
        key: public, 64 hexadecimal digits.
        name: by which answers call its owner; None: the first digits of the key.
    """
    if not KEY.fullmatch(key):
        raise UsageError(
            f"{key[:80]!r} is not a public key: 64 hexadecimal digits are expected, as `kernrec db key` prints"
        )
    name = key[:_SHOWN_DIGITS] if name is None else name
    if not NAME.fullmatch(name):
        raise UsageError(f"--name {name[:60]!r}: letters, digits, '.', '_', '@' and '-' are expected")
    known = {other: title for other, title in trusted().items() if other != key}
    if name in known.values() or name == "you":
        raise UsageError(f"--name {name}: another key has this name")
    _write(known | {key: name})


def trusts(signer: str | None) -> bool:
    """Whether rows of this signer are taken without asking; never those that nobody signed."""
    return bool(signer) and (signer in trusted() or signer == own_key())


def distrust(key_or_name: str) -> str:
    """Trust a key no longer; returns the key."""
    known = trusted()
    for key, name in known.items():
        if key_or_name in (key, name):
            _write({other: title for other, title in known.items() if other != key})
            return key
    raise unknown("key", key_or_name, [*known.values(), *known], "kernrec db trust")


def key_text(path: Path) -> str:
    """What a file of a key holds; of one that is no such file, its beginning."""
    with path.open(encoding="ascii") as file:
        return file.read(_LONGEST_KEY).strip()


def key_file() -> Path:
    """Where the own private key is; it may not exist."""
    return paths.config() / "key"


def own_key() -> str | None:
    """The own public key, if there is one."""
    try:
        text = key_text(paths.config() / "key.pub")
    except (OSError, UnicodeDecodeError):
        return None
    return text if KEY.fullmatch(text) else None


def signer_name(key: str | None) -> str:
    """How answers call who signed rows."""
    if not key:
        return "unsigned"
    if key == own_key():
        return "you"
    return trusted().get(key) or f"unknown key {key[:_SHOWN_DIGITS]}"


def read_settings(name: str, kind: type) -> Any:
    """A file of the user's settings, JSON of this type; an empty one if there is no such file."""
    path = paths.config() / name
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, kind):
        raise UsageError(f"{path} cannot be read: a JSON {kind.__name__} is expected")
    return value


def write_settings(name: str, value: Any) -> None:
    """Replace a file of the user's settings."""
    path = paths.config() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(value, indent=1).encode() + b"\n", shared=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}") from None


def _write(keys: dict[str, str]) -> None:
    write_settings("trusted.json", [{"key": key, "name": name} for key, name in keys.items()])
