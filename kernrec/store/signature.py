"""Ed25519 signatures of manifests and retractions. Whom to trust is decided elsewhere (`kernrec.store.trust`)."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError
from kernrec.store.trust import key_file, key_text
from kernrec.util.atomic_write import write_whole
from kernrec.util.optional import import_optional

LARGEST_SIGNATURE = 4096
_KEY, _SIGNATURE = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{128}")


@dataclass(frozen=True)
class Signer:
    """Signs with the private key in a file."""

    key: str
    """The public key."""
    private: Any

    @classmethod
    def of(cls, path: Path) -> "Signer":
        """The signer whose private key a file holds."""
        try:
            text = key_text(path)
        except FileNotFoundError:
            raise UsageError(f"there is no key at {path}; `kernrec db key` makes one") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None
        if not _KEY.fullmatch(text):
            raise UsageError(f"{path} is not a private key: 64 hexadecimal digits are expected")
        private = _ed25519().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))
        return cls(private.public_key().public_bytes_raw().hex(), private)

    def sign(self, content: bytes) -> bytes:
        """The content of the signature file for the bytes of a manifest."""
        return json.dumps({"key": self.key, "signature": self.signature(content)}).encode() + b"\n"

    def signature(self, content: bytes) -> str:
        """The signature of some bytes, as hexadecimal digits."""
        return str(self.private.sign(content).hex())


def make_key(path: Path) -> str:
    """Make a private key that only its user can read; returns the public key. An existing file stays as it is."""
    private = _ed25519().Ed25519PrivateKey.generate()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(private.private_bytes_raw().hex() + "\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}") from None
    return str(private.public_key().public_bytes_raw().hex())


def own_public_key() -> str:
    """The user's public key; a key is made if there is none."""
    path = key_file()
    key = Signer.of(path).key if path.exists() else make_key(path)
    try:
        write_whole(path.with_name("key.pub"), key.encode() + b"\n", shared=True)
    except OSError as error:
        raise UsageError(f"{path.parent} cannot be written: {(error.strerror or str(error)).lower()}") from None
    return key


def signer_of(content: bytes, signature: bytes, where: str) -> str:
    """The public key of the signature of `content`; raises `UsageError` if it does not fit."""
    try:
        document = json.loads(signature)
        key, value = document["key"], document["signature"]
        is_one = bool(_KEY.fullmatch(key) and _SIGNATURE.fullmatch(value))
    except (ValueError, KeyError, TypeError, RecursionError):
        is_one = False
    if not is_one:
        raise UsageError(f"the signature of {where} is not an Ed25519 signature")
    if not fits(key, value, content):
        raise UsageError(f"the signature of {where} does not fit its manifest")
    return str(key)


def fits(key: str, signature: str, content: bytes) -> bool:
    """Whether a signature of `content` is by a public key, both as hexadecimal digits."""
    public_key = _ed25519().Ed25519PublicKey
    from cryptography.exceptions import InvalidSignature

    try:
        public_key.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError):
        return False
    return True


def _ed25519() -> Any:
    return import_optional(
        "cryptography.hazmat.primitives.asymmetric.ed25519", "making or checking a signature", "share"
    )
