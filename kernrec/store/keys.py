"""Manage the user's key pair and the trusted keys, and sign and verify documents with Ed25519.

The keys are in the folder `~/.config/kernrec`:

    trusted.json   public keys that the user trusts, each with a name that the user chose
    key, key.pub   the user's private key and public key
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from kernrec import paths
from kernrec.errors import UsageError, file_errors, unknown
from kernrec.util.files import open_input, read_input, write_whole
from kernrec.util.light_dataclass import dataclass

LARGEST_SIGNATURE = 4096
_KEY, _SIGNATURE = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{128}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,40}")
_SHOWN_DIGITS = 12
_PRIME = 2**255 - 19
_EIGHTH = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER = frozenset((0, 1, _PRIME - 1, _EIGHTH, _PRIME - _EIGHTH))
"""The y coordinates of the eight points of edwards25519 whose order divides 8."""
_LONGEST_KEY = 256
_LARGEST_SETTINGS = 16 << 20


def trusted() -> dict[str, str]:
    """Return the names of the keys that the user trusts, keyed by public key, without the user's own key."""
    path = paths.config() / "trusted.json"
    try:
        values = json.loads(read_input(path, _LARGEST_SETTINGS))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    for each in values if isinstance(values, list) else [None]:
        entry = each if isinstance(each, dict) and set(each) == {"key", "name"} else {"key": "", "name": ""}
        # kernrec prints the names, so they must not contain control characters.
        if not (_KEY.fullmatch(str(entry["key"])) and _NAME.fullmatch(str(entry["name"]))):
            raise UsageError(f"{path} is not a list of keys and names")
    return {str(each["key"]): str(each["name"]) for each in values}


def trust(key: str, name: str | None) -> None:
    """Trust all rows that a public key (hexadecimal) signs. By default, the owner's `name` is the first digits of the
    key."""
    if not is_public_key(key):
        raise UsageError(
            f"{key[:80]!r} is not a public key; expected 64 hexadecimal digits, as printed by `kernrec db trust --own`"
        )
    name = key[:_SHOWN_DIGITS] if name is None else name
    if not _NAME.fullmatch(name):
        raise UsageError(f"name {name[:60]!r}: expected letters, digits, '.', '_', '@' and '-'")
    others = {other: title for other, title in trusted().items() if other != key}
    if name in others.values() or name == "you":
        raise UsageError(f"name {name}: another key has this name")
    _write_trusted(others | {key: name})


def distrust(key_or_name: str) -> str:
    """Stop trusting a key, given as digits or as its owner's name. Return the key."""
    names = trusted()
    for key, name in names.items():
        if key_or_name in (key, name):
            _write_trusted({other: title for other, title in names.items() if other != key})
            return key
    raise unknown("key", key_or_name, [*names.values(), *names], "kernrec db trust")


def _write_trusted(names: dict[str, str]) -> None:
    path, content = paths.config() / "trusted.json", [{"key": key, "name": name} for key, name in names.items()]
    with file_errors(path, "written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(content, indent=1).encode() + b"\n", shared=True)


def trusts(signer: str | None) -> bool:
    """Return whether the user trusts a signer. Return False if nobody signed."""
    return bool(signer) and (signer in trusted() or signer == own_key())


def signer_name(key: str | None) -> str:
    if not key:
        return "unsigned"
    if key == own_key():
        return "you"
    return trusted().get(key) or f"unknown key {key[:_SHOWN_DIGITS]}"


def key_file() -> Path:
    return paths.config() / "key"


def own_key() -> str | None:
    try:
        text = _key_text(paths.config() / "key.pub")
    except (OSError, UnicodeDecodeError):
        return None
    return text if _KEY.fullmatch(text) else None


def make_own_key() -> str:
    """Return the user's public key. Create a key pair if there is none."""
    path = key_file()
    key = Signer.of(path).key if path.exists() else make_key(path)
    with file_errors(path.parent, "written"):
        write_whole(path.with_name("key.pub"), key.encode() + b"\n", shared=True)
    return key


def make_key(path: Path) -> str:
    """Create a private key in a new file, and return the public key."""
    private = _ed25519().Ed25519PrivateKey.generate()
    with file_errors(path, "written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(private.private_bytes_raw().hex() + "\n")
    return str(private.public_key().public_bytes_raw().hex())


def _key_text(path: Path) -> str:
    with open_input(path) as file:
        return file.read(_LONGEST_KEY).decode("ascii").strip()


@dataclass(frozen=True)
class Signer:
    """A person or program that signs documents."""

    key: str
    """Public key, in hexadecimal digits."""
    private: Any

    @classmethod
    def of(cls, path: Path) -> "Signer":
        try:
            text = _key_text(path)
        except FileNotFoundError:
            raise UsageError(f"there is no key at {path}; `kernrec db trust --own` makes one") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None
        if not _KEY.fullmatch(text):
            raise UsageError(f"{path} is not a private key; expected 64 hexadecimal digits")
        private = _ed25519().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))
        return cls(private.public_key().public_bytes_raw().hex(), private)

    def sign(self, content: bytes) -> bytes:
        return json.dumps({"key": self.key, "signature": self.private.sign(content).hex()}).encode() + b"\n"


def signer_of(content: bytes, signature: bytes, title: str) -> str:
    """Return the public key in a signature file. Raise `UsageError` if the signature does not match `content`. `title`
    is the name of the signed file in messages."""
    try:
        document = json.loads(signature)
        key, value = document["key"], document["signature"]
        well_formed = bool(_KEY.fullmatch(key) and _SIGNATURE.fullmatch(value))
    except (ValueError, KeyError, TypeError, RecursionError):
        well_formed = False
    if not well_formed:
        raise UsageError(f"the signature of {title} is not an Ed25519 signature")
    if not fits(key, value, content):
        raise UsageError(f"the signature of {title} does not match its manifest")
    return str(key)


def is_public_key(text: str) -> bool:
    """Return whether a text is a valid public key, in hexadecimal digits, that is safe against forged signatures."""
    if not _KEY.fullmatch(text):
        return False
    y = int.from_bytes(bytes.fromhex(text), "little") & (2**255 - 1)  # The highest bit is the sign of x.
    return y < _PRIME and y not in _SMALL_ORDER


def fits(key: str, signature: str, content: bytes) -> bool:
    """Return whether a signature of `content` is valid. The key and the signature are hexadecimal digits."""
    if not is_public_key(key):
        return False
    public_key = _ed25519().Ed25519PublicKey
    from cryptography.exceptions import InvalidSignature

    try:
        public_key.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError):
        return False
    return True


def _ed25519() -> Any:
    from kernrec.util.optional import import_optional  # The import is slow, and queries do not need it.

    module = "cryptography.hazmat.primitives.asymmetric.ed25519"
    return import_optional(module, "making or checking a signature", "share")
