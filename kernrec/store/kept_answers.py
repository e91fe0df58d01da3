"""Answers that a database of pulled rows keeps: those of problems that very many rows are about.

The rows of hundreds of people about a problem take longer to combine than all else that a query does. Such a database
changes only when it is pulled, so they are combined then, by the queries that the log is read with:

    settled (rule)    a hash of the rule by which they were combined; empty since rows came or went
    kept (gpu, key)   the problems
    kept_answers, kept_failures, kept_signers    the rows of `measurement_log.LogRows`, with the GPU
"""

from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kernrec.store.connection import quoted
from kernrec.store.measurement_log import ANSWERS, FAILURES, SIGNERS, LogRows, read_rows
from kernrec.store.schema import views_sql, with_derived
from kernrec.util.batches import batches

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

KEEP_ABOVE = 5000
"""Rows of a problem on a GPU; to combine as many takes a tenth of the time that a query in a new process does."""
TOGETHER = 200_000
"""Rows that are combined in one statement: memory grows with them."""
UNSETTLED = "CREATE OR REPLACE TABLE db.settled (rule VARCHAR)"
"""The statement for a database whose rows change."""
_QUERIES = {
    "answers": ("answer", ANSWERS),
    "failures": ("whole_card_rows", f"{FAILURES} GROUP BY ALL"),
    "signers": ("whole_card_rows", f"{SIGNERS.format(merged='db.merged')} GROUP BY ALL"),
}
"""By table, the relation that is derived and the query."""


def keep_statements(counts: Iterable[tuple[str, str, int, int]]) -> list[str]:
    """The statements that keep the answers of problems in a database of pulled rows.

    counts: GPU, id, number of rows and number of failed ones of each such problem, by GPU.
    """
    statements = [f"CREATE OR REPLACE TABLE db.kept_{name} AS {_combined(name, '', 'false')}" for name in _QUERIES]
    for gpu, part in groupby(counts, lambda count: count[0]):
        for together in batches(part, lambda count: count[2], TOGETHER):
            problems = ", ".join(quoted(problem) for _, problem, _, _ in together)
            condition = f"gpu = {quoted(gpu)} AND problem_id IN ({problems})"
            wanted = [name for name in _QUERIES if name != "failures" or any(failed for *_, failed in together)]
            statements += [f"INSERT INTO db.kept_{name} {_combined(name, gpu, condition)}" for name in wanted]
    listed = " UNION ".join(f"SELECT gpu, key FROM db.kept_{name}" for name in _QUERIES)
    done = [f"CREATE OR REPLACE TABLE db.kept AS {listed}", UNSETTLED, f"INSERT INTO db.settled VALUES ('{_rule()}')"]
    return [*statements, *done]


def is_settled(connection: "DuckDBPyConnection") -> bool:
    """Whether what depends on all rows of a database of pulled rows was derived by the rule of today."""
    there = "SELECT count(*) FROM duckdb_tables() WHERE database_name = 'db' AND table_name = 'settled'"
    if not connection.execute(there).fetchall()[0][0]:  # pulled by an earlier version
        return False
    return connection.execute("FROM db.settled").fetchall() == [(_rule(),)]


def _combined(name: str, gpu: str, condition: str) -> str:
    relation, query = _QUERIES[name]
    rows = f"SELECT {quoted(gpu)} AS gpu, * FROM ({query}) ORDER BY ALL"
    return with_derived(relation, rows, condition)


def read_pulled_rows(connection: "DuckDBPyConnection", gpu: str, problems: Sequence[str]) -> LogRows:
    """As `measurement_log.read_rows`, of a database of pulled rows: what it keeps is not combined again."""
    combined = kept_problems(connection, gpu, problems)
    rows = _kept_rows(connection, gpu, combined) if combined else LogRows([], [], [], [])
    if others := [key for key in problems if key not in combined]:
        rows.add(read_rows(connection, gpu, others, signed=True))
    return rows


def kept_problems(connection: "DuckDBPyConnection", gpu: str, problems: Sequence[str]) -> set[str]:
    """Those of some problems, by key, whose answers a database of pulled rows keeps, combined by the rule of today."""
    if not is_settled(connection):
        return set()
    query = "SELECT key FROM db.kept WHERE gpu = $1 AND key IN (SELECT unnest($2::VARCHAR[]))"
    return {str(key) for (key,) in connection.execute(query, [gpu, list(problems)]).fetchall()}


def _kept_rows(connection: "DuckDBPyConnection", gpu: str, problems: Iterable[str]) -> LogRows:
    condition = f"gpu = $1 AND key IN ({', '.join(map(quoted, problems))})"

    def rows_of(name: str, order: str) -> list[tuple[Any, ...]]:
        query = f"SELECT * EXCLUDE (gpu) FROM db.kept_{name} WHERE {condition} ORDER BY {order}"
        return connection.execute(query, [gpu]).fetchall()

    return LogRows(rows_of("answers", "latency_s, tunables"), rows_of("failures", "ALL"), rows_of("signers", "ALL"), [])


@cache
def _rule() -> str:
    return sha256(f"{views_sql()}{_QUERIES}".encode()).hexdigest()[:16]
