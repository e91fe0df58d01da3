"""Parse and write signed documents: manifests of bundles, and withdrawals of rows."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from kernrec.errors import UsageError
from kernrec.store.rows import KEY_DIGITS

LICENCE = "CC0-1.0"
"""Default license of shared rows."""
TABLES = ("config", "problem", "profile", "measurement", "retraction")
"""Tables whose rows bundles may contain. Kernels are excluded, because their sources are code. Only bundles of kernrec
0.1 contain `retraction`."""

LARGEST_DOCUMENT = 2**22
"""Maximum size of a manifest, a withdrawal or a list of names, in bytes."""
LARGEST_SEGMENT = 2**30
"""Maximum size of a segment, in bytes."""
MOST_WITHDRAWN = 50_000
"""Maximum number of rows in one withdrawal."""
MOST_TEXTS = 1000
"""Maximum number of GPUs, of ops and of kernels in a manifest."""
TEXT = re.compile(
    r"[^\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]{0,200}"
)
"""Matches one line of text without control characters and zero-width characters."""

_VERSION = 1
_BUNDLE, _WITHDRAWAL, _OLD_WITHDRAWAL = "kernrec bundle", "kernrec withdrawal", "kernrec retraction"
_MOST_SEGMENTS = 10_000
_MOST_ROWS = 10**9
_HASH = re.compile(r"[0-9a-f]{64}")
_OWNER = re.compile(r"([0-9a-f]{64})?")
_ROW = re.compile(rf"[0-9a-f]{{{KEY_DIGITS['measurement']}}}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_@.-]{0,120}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


@dataclass(frozen=True)
class Segment:
    """A Parquet file with rows of one table, as listed in a manifest."""

    table: str
    sha256: str
    size: int
    rows: int

    @property
    def name(self) -> str:
        """Name of the file in the bundle."""
        return f"segments/{self.sha256}.parquet"


@dataclass(frozen=True)
class Manifest:
    """List of a bundle's contents, with their owner and license."""

    segments: tuple[Segment, ...]
    models: tuple[str, ...] = ()
    """Names of model files in bundles of kernrec 0.1. kernrec never reads these files."""
    created_at: str = ""
    made_by: str = ""
    licence: str = LICENCE
    provenance: Mapping[str, list[str]] = field(default_factory=dict)
    """GPUs, ops and kernels of the measurements, and the days of the first and the last measurement."""
    schema: int = 0
    owner: str = ""
    """Public key of the signer. Empty until the bundle is written."""

    @property
    def size(self) -> int:
        """Total size of the segments, in bytes."""
        return sum(segment.size for segment in self.segments)

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows in the bundle, keyed by table name."""
        return {table: sum(each.rows for each in self.segments if each.table == table) for table in TABLES}

    def to_bytes(self) -> bytes:
        """Return the content of the manifest's file. Equal manifests give equal bytes."""
        document = {"version": _VERSION, "format": _BUNDLE, **asdict(self), "rows": self.rows}
        return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=True).encode() + b"\n"


@dataclass(frozen=True)
class Withdrawal:
    """A signer's request to stop using some of the measurements that the same signer shared."""

    sessions: Mapping[str, list[str]]
    """Hash of the public columns of each withdrawn measurement (`outgoing.likeness_key`), keyed by session. In a
    withdrawal of kernrec 0.1, the session is empty, and the values are keys of rows."""
    created_at: str
    made_by: str
    reason: str
    owner: str
    by_key: bool = False
    """Whether the withdrawal contains keys of rows, as in kernrec 0.1."""

    def to_bytes(self) -> bytes:
        """Return the bytes to sign: the content of the withdrawal's file without the signature."""
        document = asdict(self)
        del document["by_key"]
        return json.dumps({"version": _VERSION, "format": _WITHDRAWAL, **document}, sort_keys=True).encode()


def bundle_name(manifest: Manifest, content: bytes | None = None) -> str:
    """Return the name of a shared bundle's file. Raise `UsageError` if the manifest has several GPUs or none."""
    gpus = manifest.provenance.get("gpus", [])
    if len(gpus) != 1:
        raise UsageError(
            f"a shared bundle must have rows of exactly one GPU; this one has rows of {', '.join(gpus) or 'none'}"
        )
    digest = hashlib.sha256(content or manifest.to_bytes()).hexdigest()
    return f"{gpus[0]}/{manifest.created_at[:10]}-{manifest.owner[:8]}-{digest[:12]}.zip"


def parse_manifest(content: bytes, title: str) -> Manifest:
    """Parse an untrusted manifest. Raise `UsageError` with the name `title` if the content is not valid."""
    with parsing(title, "the manifest of a bundle"):
        document = json.loads(content)
        if not isinstance(document, dict) or document.get("format") != _BUNDLE:
            raise ValueError(f"its format is not {_BUNDLE!r}")
        _check_version(document)
        provenance = document["provenance"]
        if not isinstance(provenance, dict) or len(provenance) > 20:
            raise ValueError("its provenance is not an object")
        manifest = Manifest(
            segments=tuple(map(_segment, listed(document, "segments", _MOST_SEGMENTS))),
            models=tuple(_matching(each, "file", _MODEL) for each in listed(document, "models", _MOST_SEGMENTS)),
            provenance={_checked(name, TEXT, "provenance"): _texts(values) for name, values in provenance.items()},
            schema=_whole(document, "schema", 10_000),
            **_signed_texts(document, licence=TEXT, owner=_OWNER),
        )
        if {table: document["rows"].get(table, 0) for table in TABLES} != manifest.rows:
            raise ValueError("its rows are not the sum of its segments' rows")
        return manifest


def parse_withdrawal(content: bytes, title: str) -> Withdrawal:
    """Parse an untrusted list of rows to withdraw. Raise `UsageError` with the name `title` if it is not valid."""
    with parsing(title, "a withdrawal"):
        document = json.loads(content)
        old = document["format"] == _OLD_WITHDRAWAL
        if not old and document["format"] != _WITHDRAWAL:
            raise ValueError(f"its format is not {_WITHDRAWAL!r}")
        _check_version(document)
        sessions = {"": listed(document, "rows", MOST_WITHDRAWN)} if old else document["sessions"]
        if not isinstance(sessions, dict) or sum(map(len, sessions.values())) > MOST_WITHDRAWN:
            raise ValueError(f"its sessions are not an object of at most {MOST_WITHDRAWN} rows")
        return Withdrawal(
            {
                _checked(session, TEXT, "session"): [
                    _checked(row, _ROW, "row") for row in listed(sessions, session, MOST_WITHDRAWN)
                ]
                for session in sessions
            },
            **_signed_texts(document, reason=TEXT, owner=_HASH),
            by_key=old,
        )


@contextmanager
def parsing(title: str, kind: str) -> Iterator[None]:
    """Convert any error in a `with` block to a `UsageError`: the file `title` is not a valid `kind`."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = " ".join(str(error).split())[:120] or type(error).__name__
        problem += " is missing" if isinstance(error, KeyError) else ""
        raise UsageError(f"{title} is not {kind}: {problem}") from None


def listed(document: Mapping[str, Any], name: str, most: int) -> list[Any]:
    """Return a list in a document. Raise `ValueError` if it is not a list or has more than `most` items."""
    values = document[name]
    if not isinstance(values, list) or len(values) > most:
        raise ValueError(f"its {name} are not a list of at most {most}")
    return values


def _check_version(document: Mapping[str, Any]) -> None:
    if (version := document.get("version")) != _VERSION:
        raise ValueError(f"its version is {version!r:.20}; this kernrec reads {_VERSION}")


def _segment(value: Any) -> Segment:
    if value["table"] not in TABLES:
        raise ValueError(f"a segment belongs to the unknown table {value['table']!r:.40}")
    size, rows = _whole(value, "size", LARGEST_SEGMENT), _whole(value, "rows", _MOST_ROWS)
    return Segment(value["table"], _matching(value, "sha256", _HASH), size, rows)


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list) or len(values) > MOST_TEXTS:
        raise ValueError("its provenance is not a list of texts")
    return [_checked(value, TEXT, "provenance") for value in values]


def _matching(document: Mapping[str, Any], name: str, pattern: re.Pattern[str]) -> str:
    return _checked(document[name], pattern, name)


def _signed_texts(document: Mapping[str, Any], **patterns: re.Pattern[str]) -> dict[str, Any]:
    patterns |= {"created_at": _TIME, "made_by": TEXT}
    texts = {name: _matching(document, name, pattern) for name, pattern in patterns.items()}
    datetime.fromisoformat(texts["created_at"])
    return texts


def _checked(value: Any, pattern: re.Pattern[str], name: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"its {name} is {value!r:.60}, which is not valid")
    return value


def _whole(document: Mapping[str, Any], name: str, most: int) -> int:
    value = document[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} is {value!r:.40}; expected a whole number from 0 to {most}")
    return value
