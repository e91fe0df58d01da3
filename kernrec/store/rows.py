"""Compute the keys of rows, and insert rows."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from operator import index
from typing import TYPE_CHECKING

from kernrec.errors import UsageError, unknown

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Row = Mapping[str, object]

KEY_DIGITS = {"gpu": 16, "kernel": 16, "config": 16, "problem": 16, "profile": 16, "measurement": 32, "retraction": 32}


def canonical_json(value: object) -> str:
    """Return a value as JSON with sorted keys and without spaces. Equal values give equal text on every machine.

    Raises:
        ValueError: The value contains NaN or an infinity.
        TypeError: The value contains another type than None, bool, int, float, str, list, tuple and str-keyed mapping.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_hash(value: object, digits: int = 16) -> str:
    """Return the first hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    return sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def columns(connection: "DuckDBPyConnection", table: str) -> dict[str, str]:
    """Return the SQL types of a table's columns, in order, keyed by column name. The first column is the key."""
    described = connection.execute(f"DESCRIBE db.{table}").fetchall()
    return {name: kind for name, kind, *_ in described}


def insert(connection: "DuckDBPyConnection", table: str, rows: Iterable[Row]) -> list[str]:
    """Add rows to a table and return their keys. Skip rows that the table already contains. Raise `UsageError`, and add
    nothing, if a column is unknown or a value does not fit its column."""
    kinds = columns(connection, table)
    key, *names = kinds
    keys: list[str] = []
    filled: dict[str, list[object]] = {name: [] for name in kinds}
    new: set[str] = set()
    for row in rows:
        if wrong := [name for name in row if name not in names]:
            raise unknown(f"column of {table}", wrong[0], names)
        values = {name: _value(table, name, kinds[name], row.get(name)) for name in names}
        keys.append(row_key(table, values))
        if keys[-1] in new:
            continue
        new.add(keys[-1])
        filled[key].append(keys[-1])
        for name, value in values.items():
            filled[name].append(value)
    # Pass whole columns to one statement, because one statement per row is much slower.
    side_by_side = ", ".join(f'unnest(${i}::{kind}[]) AS "{name}"' for i, (name, kind) in enumerate(kinds.items(), 1))
    lacking = f"(SELECT {side_by_side}) ANTI JOIN db.{table} AS stored USING ({key})"
    connection.execute(f"INSERT INTO db.{table} BY NAME FROM {lacking}", list(filled.values()))
    return keys


def rewrite_keys(connection: "DuckDBPyConnection", condition: str) -> None:
    """Recompute the keys of the measurements that meet an SQL condition."""
    rows = as_dicts(connection.execute(f"FROM db.measurement WHERE {condition}"))
    connection.execute(f"DELETE FROM db.measurement WHERE {condition}")
    for row in rows:
        del row["measurement_id"]
    insert(connection, "measurement", rows)


def row_key(table: str, values: Row) -> str:
    """Return the key of a row: a hash of the table's name and of all values that are not NULL."""
    content = {name: _plain(value) for name, value in values.items() if value is not None}
    return content_hash({"table": table, **content}, digits=KEY_DIGITS[table])


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def _value(table: str, name: str, kind: str, value: object) -> object:
    if value is None:
        return None
    try:
        return _CONVERSIONS[kind](value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{table}.{name} takes {kind}, not {value!r:.80}") from None


def _whole(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError
    return index(value)  # type: ignore[arg-type]  # raises TypeError itself, but not for NumPy's integers


def _number(value: object) -> float:
    if isinstance(value, (bool, str)):
        raise TypeError
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError
    return number + 0.0  # -0.0 becomes 0.0, so that both have the same key.


def _truth(value: object) -> bool:
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError


def _text(value: object) -> str:
    if isinstance(value, str):
        return str(value)  # An enumeration's member is stored as its value.
    if isinstance(value, (Mapping, list, tuple)):
        return canonical_json(value)
    raise TypeError


def _numbers(value: object) -> list[float]:
    if isinstance(value, str):
        raise TypeError
    return [_number(item) for item in value]  # type: ignore[attr-defined]


def _time(value: object) -> datetime:
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(time, datetime):
        raise TypeError
    return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time


_CONVERSIONS: dict[str, Callable[[object], object]] = {
    "VARCHAR": _text,
    "INTEGER": _whole,
    "BIGINT": _whole,
    "DOUBLE": _number,
    "BOOLEAN": _truth,
    "DOUBLE[]": _numbers,
    "TIMESTAMP": _time,
}


def as_dicts(cursor: "DuckDBPyConnection", most: int | None = None) -> list[dict[str, object]]:
    names: Sequence[str] = [column[0] for column in cursor.description or ()]
    rows = cursor.fetchall() if most is None else cursor.fetchmany(most)
    return [dict(zip(names, row, strict=True)) for row in rows]
