"""A retraction: who shared rows says that they must not answer any more. Hostile until parsed."""

import json
import re
from dataclasses import asdict, dataclass

from kernrec.store.rows import KEY_DIGITS
from kernrec.store.share.manifest import HASH, TEXT, TIME, VERSION, Manifest, listed, matching, parsing

MOST_ROWS = 50_000
"""Rows of one retraction, so that it is no larger than a manifest may be."""
_FORMAT = "kernrec retraction"
_ROW = re.compile(rf"[0-9a-f]{{{KEY_DIGITS['measurement']}}}")


@dataclass(frozen=True)
class Retraction:
    """Measurements that their owner takes back. It holds for what the same owner shared, and for nothing else."""

    rows: tuple[str, ...]
    """Keys of measurements, as they were shared."""
    created_at: str
    """UTC."""
    made_by: str
    """The program and its version."""
    reason: str
    owner: str
    """Public key of who shared the rows, who must have signed this."""

    def to_bytes(self) -> bytes:
        """The retraction as its file has it."""
        document = {"format": _FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=True).encode() + b"\n"


def parse_document(content: bytes, where: str) -> Manifest | Retraction:
    """The manifest or retraction of a stranger; raises `UsageError` of one line for anything else."""
    with parsing(where, "a manifest or retraction"):
        document = json.loads(content)
        if document["format"] != _FORMAT:
            return Manifest.from_bytes(content, where)
        if document["version"] != VERSION:
            raise ValueError(f"its version is {document['version']!r:.20}; this kernrec reads {VERSION}")
        return Retraction(
            tuple(matching(row, _ROW, "row") for row in listed(document, "rows", MOST_ROWS)),
            matching(document["created_at"], TIME, "created_at"),
            matching(document["made_by"], TEXT, "made_by"),
            matching(document["reason"], TEXT, "reason"),
            matching(document["owner"], HASH, "owner"),
        )
