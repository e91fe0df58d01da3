"""Generate the page about the database schema for `build_reference.py`."""

import re
from collections.abc import Iterable, Sequence


def schema() -> str:
    """Return the page of all tables and views of a database, after all migrations."""
    from kernrec.store.connection import connect_memory
    from kernrec.store.schema import migrate, migrations, views_sql

    with connect_memory() as connection:
        migrate(connection, 0)
        columns = connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns"
            " WHERE table_catalog = 'db' ORDER BY table_name, ordinal_position"
        ).fetchall()
        views = {
            name for (name,) in connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
        }
    sql = [*(step.sql for step in migrations()), views_sql().replace("CREATE OR REPLACE", "CREATE")]
    parts = [
        "# Database schema",
        "A database is one DuckDB file. The numbered migrations in `db/schema` create its schema. When kernrec opens an"
        " older database, it applies the missing migrations. Units are SI and part of the names. The key of a row is a"
        " hash of its other columns that are not NULL, so equal rows have equal keys in all databases.",
        "Migrations: " + ", ".join(f"`{step.number:03d}_{step.name}.sql`" for step in migrations()) + ".",
    ]
    for kind, names in (
        ("table", [t for t in dict.fromkeys(row[0] for row in columns) if t not in views]),
        ("view", sorted(views)),
    ):
        for name in names:
            comments = _comments(sql, name)
            parts.append(f"## {kind.capitalize()} `{name}`")
            if about := _before(sql, name):
                parts.append(about)
            rows = [
                (f"`{column}`", data_type, "" if nullable == "YES" else "yes", comments.get(column, ""))
                for table, column, data_type, nullable in columns
                if table == name
            ]
            heads = ("column", "type", "required", "comment")
            parts.append(
                markdown_table(heads, rows) if kind == "table" else markdown_table(heads[:2], [row[:2] for row in rows])
            )
    return "\n\n".join(parts) + "\n"


def _comments(sql: Iterable[str], table: str) -> dict[str, str]:
    comments = {}
    for text in sql:
        created = re.search(rf"CREATE TABLE {table} \((.*?)\n\);", text, re.DOTALL)
        lines = created.group(1).splitlines() if created else []
        lines += re.findall(rf"ALTER TABLE {table} ADD COLUMN (.*)", text)
        for line in lines:
            if match := re.match(r"\s*([a-z_0-9]+) [A-Z].*?--\s*(.*)", line):
                comments[match.group(1)] = match.group(2)
    return comments


def _before(sql: Iterable[str], name: str) -> str:
    about = ""
    for text in sql:
        if comment := re.search(rf"((?:^--.*\n)+)CREATE (?:OR REPLACE )?(?:TABLE|VIEW) {name}\b", text, re.MULTILINE):
            about = " ".join(line.removeprefix("--").strip() for line in comment.group(1).splitlines())
    return about


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
