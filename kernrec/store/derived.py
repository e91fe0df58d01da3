"""What is derived from the measurement log: the relations of `db/schema/views.sql`, as parts of a query.

A file's own views are never used, because a file may be a stranger's.
"""

import re
from functools import cache

from kernrec import paths

MOMENT = "gpu, problem_id, kernel, kernel_hash, config_id, session, block, position"
"""The columns that say which measurement a row is about; two rows that agree in all of them contradict each other."""

_VIEW = re.compile(r"^CREATE OR REPLACE VIEW (\w+) AS$(.*?);$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"\b(FROM|JOIN) (measurement|retraction)\b")


@cache
def views_sql() -> str:
    """The statements that make the views."""
    return (paths.shipped("db/schema") / "views.sql").read_text(encoding="utf-8")


@cache
def derived() -> dict[str, str]:
    """The query of each relation by name; a query may use the relations before it."""
    return {name: _TABLE.sub(r"\1 db.\2", body).strip() for name, body in _VIEW.findall(views_sql())}


def with_derived(name: str, query: str, where: str = "") -> str:
    """A query that may use the relation `name` and those that it is derived from.

    Args:
        name: of the relation.
        query: in SQL.
        where: a condition on the measurements that all of these are derived from; it applies while the log is scanned.
    """
    parts: list[str] = []
    log = f"(SELECT * FROM db.measurement WHERE {where}) AS measurement"
    for part, body in derived().items():
        if where:
            body = body.replace("FROM db.measurement", f"FROM {log}")
        # Not materialized, so that no columns are read but those that the query uses.
        parts.append(f"{part} AS NOT MATERIALIZED (\n{body}\n)")
        if part == name:
            break
    return f"WITH {', '.join(parts)}\n{query}"
