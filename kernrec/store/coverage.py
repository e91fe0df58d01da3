"""Count the measurements in databases by GPU, op and kernel."""

from typing import Any

from kernrec.store.database import Database
from kernrec.store.keys import signer_name


def tally(database: Database) -> list[dict[str, Any]]:
    """Count the measurements for each combination of GPU, op, kernel and outcome.

    Return one dictionary per combination, in sorted order.
    """
    return _grouped(
        database,
        "db.measurement",
        outcome="outcome",
        measurements="count(*)",
        replayed="count(*) FILTER (replayed)",
        mig="count(*) FILTER (mig)",
        configs="count(DISTINCT config_id)",
        problems="count(DISTINCT problem_id)",
    )


def contributed(database: Database) -> list[dict[str, Any]]:
    """Count the rows from other people for each GPU, op and kernel, and list the names of the contributors."""
    signers = "(SELECT measurement_id, list(DISTINCT signer) AS signers FROM db.merged GROUP BY 1)"
    rows = _grouped(
        database,
        f"db.measurement JOIN {signers} USING (measurement_id)",
        problems="count(DISTINCT problem_id)",
        configs="count(DISTINCT (problem_id, config_id))",
        rows="count(*)",
        energies="count(energy_j)",
        signers="list_sort(list_distinct(flatten(list(signers))))",
    )
    return [row | {"signers": [signer_name(key) for key in row["signers"]]} for row in rows]


def _grouped(database: Database, source: str, **columns: str) -> list[dict[str, Any]]:
    columns = {"gpu": "gpu", "op": "op", "kernel": "kernel", **columns}
    named = ", ".join(f"{expression} AS {name}" for name, expression in columns.items())
    query = f"SELECT {named} FROM {source} JOIN db.problem AS problem USING (problem_id) GROUP BY ALL ORDER BY ALL"
    return [dict(zip(columns, values, strict=True)) for values in database.query(query)]
