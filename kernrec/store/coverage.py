"""The coverage of databases, for a reader who wonders how far to trust an answer: measurements by GPU and kernel, their
age, and how narrow their intervals are."""

from dataclasses import dataclass
from typing import Any

from kernrec.store.schema import with_derived
from kernrec.store.stack import Stack

_MEASURED = {
    "gpu": "gpu",
    "op": "op",
    "kernel": "kernel",
    "replayed": "replayed",
    "problems": "count(DISTINCT problem_id)",
    "answers": "count(*)",
    "sessions": "sum(sessions)",
    "first_measured_at": "min(measured_at)",
    "last_measured_at": "max(measured_at)",
    "devices": "list_sort(list(DISTINCT device) FILTER (device IS NOT NULL))",
    "latency_half_width": "median((latency_high_s - latency_low_s) / (2 * latency_s))",
    "energy_half_width": "median((energy_high_j - energy_low_j) / (2 * energy_j))",
    "with_energy": "count(energy_j)",
}
"""The columns of a row about a kernel's measurements on a GPU, in SQL."""
_FAILED = """
    SELECT gpu, op, kernel, count(*) FROM db.measurement JOIN db.problem USING (problem_id)
    WHERE outcome <> 'ok' GROUP BY ALL
"""


def coverage(stack: Stack) -> list[dict[str, Any]]:
    """A row for each database, GPU, op and kernel with measurements, of plain values.

    `answers` counts configs at an operating point; half widths are fractions of the value, the median of the rows that
    state an interval, None where none does; `failed` counts rows of configs that failed. Times are UTC, ISO 8601.

    Raises:
        UsageError: a database cannot be read.
    """
    columns = ", ".join(f"{expression} AS {name}" for name, expression in _MEASURED.items())
    query = f"SELECT {columns} FROM answer JOIN db.problem AS problem USING (problem_id) GROUP BY ALL ORDER BY ALL"
    rows: list[dict[str, Any]] = []
    for title, database in stack.databases():
        failed = {(gpu, op, kernel): count for gpu, op, kernel, count in database.query(_FAILED)}
        for values in database.query(with_derived("answer", query)):
            row = dict(zip(_MEASURED, values, strict=True))
            row["devices"] = row["devices"] or []
            row["sessions"] = int(row["sessions"])
            row["failed"] = failed.get((row["gpu"], row["op"], row["kernel"]), 0)
            row |= {name: row[name].isoformat() + "Z" for name in ("first_measured_at", "last_measured_at")}
            rows.append({"database": title, **row})
    return rows


@dataclass(frozen=True)
class MeasuredProblem:
    """Rows that databases hold of a problem on a card, replayed ones aside."""

    gpu: str
    op: str
    problem: str
    """Its key."""
    configs: int
    """At an operating point each."""
    energies: int
    """Of these."""
    last_measured: str
    """Day."""


def measured_problems(stack: Stack) -> list[MeasuredProblem]:
    """Each measured problem of each database; errors as of `coverage`."""
    query = (
        "SELECT gpu, op, problem.key, count(*), count(energy_j), strftime(max(measured_at), '%Y-%m-%d') FROM answer"
        " JOIN db.problem AS problem USING (problem_id) WHERE NOT coalesce(replayed, false) GROUP BY ALL ORDER BY ALL"
    )
    return [
        MeasuredProblem(*values)
        for _, database in stack.databases()
        for values in database.query(with_derived("answer", query))
    ]
