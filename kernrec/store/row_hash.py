"""A row's key computed by DuckDB, for millions of rows: the same hash as `rows.row_key`, as one SQL expression.

`row_key` is the definition. Where the two differ for a row (a number that DuckDB spells in another way than Python),
`wrong_keys` asks `row_key`, so only a row whose content really has another hash counts as altered.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kernrec.store.rows import KEY_DIGITS, as_dicts, row_key
from kernrec.store.schema import layout_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_BATCH = 1000


def key_expression(table: str, kinds: Mapping[str, str]) -> str:
    """The key of a row of `table`, whose name is hashed too, as SQL; `kinds`: its columns, the key first, by type."""
    _, *names = kinds
    required = layout_of().required[table]
    before, after = [], []
    for name in sorted(names):
        value = _TEXT[kinds[name]].format(f'"{name}"')
        # Commas point to the name of the table, which every row has. One function puts all parts together and skips
        # those that are NULL: a chain of `||` copies what it has at each step, so it is for columns that may be NULL.
        joined = ", " if name in required else " || "
        if name < "table":
            before += [joined.join((f"'\"{name}\":'", value, "','"))]
        else:
            after += [joined.join((f"',\"{name}\":'", value))]
    parts = ", ".join(["'{'", *before, f'\'"table":"{table}"\'', *after, "'}'"])
    return f"substr(sha256(concat({parts})), 1, {KEY_DIGITS[table]})"


_TEXT = {
    "VARCHAR": "CAST(to_json({0}) AS VARCHAR)",  # quoted, with the escapes that Python writes
    "INTEGER": "CAST({0} AS VARCHAR)",
    "BIGINT": "CAST({0} AS VARCHAR)",
    "DOUBLE": "CAST({0} AS VARCHAR)",
    "BOOLEAN": "CAST({0} AS VARCHAR)",
    # Where no number needs an exponent, DuckDB writes JSON as Python does, four times as fast as it casts a list.
    "DOUBLE[]": (
        "CASE WHEN list_min({0}) >= 1e-4 AND list_max({0}) < 1e16 THEN CAST(to_json({0}) AS VARCHAR) "
        "ELSE replace(CAST({0} AS VARCHAR), ' ', '') END"
    ),
    "TIMESTAMP": (
        "CASE WHEN microsecond({0}) % 1000000 = 0 THEN strftime({0}, '\"%Y-%m-%dT%H:%M:%S\"') "
        "ELSE strftime({0}, '\"%Y-%m-%dT%H:%M:%S.%f\"') END"
    ),
}
"""A column's value as canonical JSON, by the type of the column."""


def used_columns(connection: "DuckDBPyConnection", source: str, kinds: Mapping[str, str]) -> dict[str, str]:
    """The columns that have a value in some row, the key among them; without any row all columns.

    A recording fills a fifth of the columns, and one that is NULL everywhere costs as much time as another.

    Args:
        connection: to query.
        source: a table or other source of the rows, in SQL.
        kinds: the columns with their types.
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
    """(key as stored, key of the content) of each row whose key is not the hash of its content.

    The arguments are as for `used_columns`; columns that are NULL in all rows may be left out of `kinds`.
    """
    key = next(iter(kinds))
    cursor = connection.cursor()
    cursor.execute(f"SELECT * FROM {source} WHERE {key} IS DISTINCT FROM {key_expression(table, kinds)}")
    while rows := as_dicts(cursor, _BATCH):
        for row in rows:
            stored = row.pop(key)
            if (computed := row_key(table, row)) != stored:
                yield str(stored), computed
