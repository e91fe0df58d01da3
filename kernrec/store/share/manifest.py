"""The manifest of a bundle: what is in it, whose it is, and under which licence; hostile until parsed."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from kernrec.errors import UsageError

VERSION = 1
LICENCE = "CC0-1.0"
"""Of shared rows, unless their owner names another."""
TABLES = ("config", "problem", "profile", "measurement", "retraction")
"""The tables that are shared. Kernels are not: their source is code."""

LARGEST_MANIFEST = 2**22
LARGEST_SEGMENT = 2**30
LARGEST_MODEL = 2**26
_MOST_SEGMENTS = 10_000
_MOST_ROWS = 10**9
MOST_TEXTS = 1000
"""GPUs, ops or kernels that a manifest names."""
HASH = re.compile(r"[0-9a-f]{64}")
OWNER = re.compile(r"([0-9a-f]{64})?")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_@.-]{0,120}")
TEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]{0,200}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


@dataclass(frozen=True)
class Segment:
    """One Parquet file of rows."""

    table: str
    sha256: str
    size: int
    """Bytes."""
    rows: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"segments/{self.sha256}.parquet"


@dataclass(frozen=True)
class Model:
    """One file of a trained model or calibration."""

    file: str
    """Its name in the folder of models."""
    sha256: str
    size: int
    """Bytes."""

    @property
    def name(self) -> str:
        """Of its file."""
        return f"models/{self.sha256}"


@dataclass(frozen=True)
class Manifest:
    """What a bundle is made of."""

    segments: tuple[Segment, ...]
    models: tuple[Model, ...] = ()
    created_at: str = ""
    """UTC."""
    made_by: str = ""
    """The program and its version."""
    licence: str = LICENCE
    provenance: Mapping[str, list[str]] = field(default_factory=dict)
    """GPUs, ops and tools of the measurements, and the days of the first and the last."""
    schema: int = 0
    owner: str = ""
    """Public key of who shares the rows and must have signed the manifest; empty: nobody says so."""

    @property
    def items(self) -> "list[Segment | Model]":
        """Its segments and models."""
        return [*self.segments, *self.models]

    @property
    def rows(self) -> dict[str, int]:
        """How many rows each table has."""
        return {table: sum(each.rows for each in self.segments if each.table == table) for table in TABLES}

    def to_bytes(self) -> bytes:
        """The manifest as its file has it; equal manifests have equal bytes."""
        document = {"format": "kernrec bundle", "version": VERSION, **asdict(self), "rows": self.rows}
        return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=True).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> "Manifest":
        """The manifest of a stranger; raises `UsageError` of one line unless everything in it is as it should be."""
        with parsing(where, "the manifest of a bundle"):
            return _manifest(json.loads(content))


@contextmanager
def parsing(where: str, kind: str) -> Iterator[None]:
    """Whatever is wrong with a stranger's document becomes a `UsageError` of one line."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = " ".join(str(error).split())[:120] or type(error).__name__
        raise UsageError(f"{where} is not {kind}: {what}") from None


def _manifest(document: Any) -> Manifest:
    if not isinstance(document, dict) or document.get("format") != "kernrec bundle":
        raise ValueError("its format is not 'kernrec bundle'")
    if document.get("version") != VERSION:
        raise ValueError(f"its version is {document.get('version')!r:.20}; this kernrec reads {VERSION}")
    segments = [_segment(each) for each in listed(document, "segments")]
    models = [_model(each) for each in listed(document, "models")]
    provenance = document["provenance"]
    if not isinstance(provenance, dict) or len(provenance) > 20:
        raise ValueError("its provenance is not an object")
    manifest = Manifest(
        tuple(segments),
        tuple(models),
        matching(document["created_at"], TIME, "created_at"),
        matching(document["made_by"], TEXT, "made_by"),
        matching(document["licence"], TEXT, "licence"),
        {matching(name, TEXT, "provenance"): _texts(values) for name, values in provenance.items()},
        whole(document["schema"], "schema", 10_000),
        matching(document["owner"], OWNER, "owner"),
    )
    if {table: document["rows"].get(table, 0) for table in TABLES} != manifest.rows:
        raise ValueError("its rows are not the sum of its segments' rows")
    return manifest


def _segment(value: Any) -> Segment:
    if value["table"] not in TABLES:
        raise ValueError(f"a segment is of the table {value['table']!r:.40}")
    return Segment(
        value["table"],
        matching(value["sha256"], HASH, "sha256"),
        whole(value["size"], "size", LARGEST_SEGMENT),
        whole(value["rows"], "rows", _MOST_ROWS),
    )


def _model(value: Any) -> Model:
    return Model(
        matching(value["file"], _MODEL, "file"),
        matching(value["sha256"], HASH, "sha256"),
        whole(value["size"], "size", LARGEST_MODEL),
    )


def listed(document: Mapping[str, Any], name: str, most: int = _MOST_SEGMENTS) -> list[Any]:
    """A list of at most `most` values."""
    values = document[name]
    if not isinstance(values, list) or len(values) > most:
        raise ValueError(f"its {name} are not a list of at most {most}")
    return values


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list) or len(values) > MOST_TEXTS:
        raise ValueError("its provenance is not a list of texts")
    return [matching(value, TEXT, "provenance") for value in values]


def matching(value: Any, pattern: re.Pattern[str], what: str) -> str:
    """A text of a closed form."""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"its {what} is {value!r:.60}")
    return value


def whole(value: Any, what: str, most: int) -> int:
    """A whole number from 0 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"its {what} is {value!r:.40}; at most {most} is accepted")
    return value
