"""Compute the keys of millions of rows in DuckDB: the hash of `rows.row_key`, as one SQL expression.

`row_key` is the definition. DuckDB may format a number differently from Python. So `wrong_keys` checks suspicious rows
with `row_key`, and reports only rows whose content really has another hash.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kernrec.store.rows import KEY_DIGITS, as_dicts, row_key
from kernrec.store.schema import layout_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_BATCH = 1000


def key_expression(table: str, kinds: Mapping[str, str]) -> str:
    """Return SQL that computes the key of a row.

    Args:
        table: Name of the table, which is part of the hash.
        kinds: Types of its columns by name, the key first.
    """
    _, *names = kinds
    required = layout_of().required[table]
    before, after = [], []
    for name in sorted(names):
        value = _TEXT[kinds[name]].format(f'"{name}"')
        # Put each comma on the side of the table's name, which is in every row. `concat` skips parts that are NULL. A
        # chain of `||` copies the text at each step, so use it only for columns that may be NULL.
        joined = ", " if name in required else " || "
        if name < "table":
            before += [joined.join((f"'\"{name}\":'", value, "','"))]
        else:
            after += [joined.join((f"',\"{name}\":'", value))]
    parts = ", ".join(["'{'", *before, f'\'"table":"{table}"\'', *after, "'}'"])
    return f"substr(sha256(concat({parts})), 1, {KEY_DIGITS[table]})"


_TEXT = {
    "VARCHAR": "CAST(to_json({0}) AS VARCHAR)",  # The text is quoted and escaped as in Python.
    "INTEGER": "CAST({0} AS VARCHAR)",
    "BIGINT": "CAST({0} AS VARCHAR)",
    "DOUBLE": "CAST({0} AS VARCHAR)",
    "BOOLEAN": "CAST({0} AS VARCHAR)",
    # Without exponents, DuckDB's JSON equals Python's, and is four times as fast as a cast of the list.
    "DOUBLE[]": (
        "CASE WHEN list_min({0}) >= 1e-4 AND list_max({0}) < 1e16 THEN CAST(to_json({0}) AS VARCHAR) "
        "ELSE replace(CAST({0} AS VARCHAR), ' ', '') END"
    ),
    "TIMESTAMP": (
        "CASE WHEN microsecond({0}) % 1000000 = 0 THEN strftime({0}, '\"%Y-%m-%dT%H:%M:%S\"') "
        "ELSE strftime({0}, '\"%Y-%m-%dT%H:%M:%S.%f\"') END"
    ),
}
"""SQL that formats a column's value as canonical JSON, by the column's type."""


def used_columns(connection: "DuckDBPyConnection", source: str, kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the key and the columns that have a value in some row; all columns if there are no rows.

    A recording fills a fifth of the columns, and hashing a column takes time even if the column is NULL everywhere.

    Args:
        connection: Connection to query.
        source: Table or other source of the rows, in SQL.
        kinds: Types of the columns by name, the key first.
    """
    columns = ", ".join(f'count("{name}")' for name in kinds)
    ((total, *counts),) = connection.execute(f"SELECT count(*), {columns} FROM {source}").fetchall()
    return {
        name: kind
        for number, ((name, kind), count) in enumerate(zip(kinds.items(), counts, strict=True))
        if count or not total or not number
    }


def wrong_keys(
    connection: "DuckDBPyConnection", table: str, source: str, kinds: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield (stored key, key of the content) for each row whose key is not the hash of its content.

    The arguments are those of `used_columns`; `kinds` may omit columns that are NULL in all rows.
    """
    key = next(iter(kinds))
    cursor = connection.cursor()
    cursor.execute(f"SELECT * FROM {source} WHERE {key} IS DISTINCT FROM {key_expression(table, kinds)}")
    while rows := as_dicts(cursor, _BATCH):
        for row in rows:
            stored = row.pop(key)
            if (computed := row_key(table, row)) != stored:
                yield str(stored), computed
