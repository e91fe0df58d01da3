"""Summarize the measurements in databases by GPU, op and kernel, with their outcomes and signers."""

from collections.abc import Mapping
from typing import Any

from kernrec.store.database import Database
from kernrec.store.keys import signer_name

_COUNTED = {
    **{name: name for name in ("gpu", "op", "kernel", "outcome")},
    "measurements": "count(*)",
    "replayed": "count(*) FILTER (replayed)",
    "mig": "count(*) FILTER (mig)",
    "configs": "count(DISTINCT config_id)",
    "problems": "count(DISTINCT problem_id)",
}


def tally(database: Database) -> list[dict[str, Any]]:
    """Count the measurements for each combination of GPU, op, kernel and outcome.

    Returns:
        A dictionary for each combination, in sorted order. It counts all measurements, replayed measurements,
        measurements on MIG slices, configs and problems.
    """
    return [dict(zip(_COUNTED, values, strict=True)) for values in database.query(_grouped(_COUNTED, "db.measurement"))]


_SHARED = {
    **{name: name for name in ("gpu", "op", "kernel")},
    "problems": "count(DISTINCT problem_id)",
    "configs": "count(DISTINCT (problem_id, config_id))",
    "rows": "count(*)",
    "energies": "count(energy_j)",
    "signers": "list_sort(list_distinct(flatten(list(signers))))",
}


def contributed(database: Database) -> list[dict[str, Any]]:
    """Return a summary of the pulled rows for each combination of GPU, op and kernel, with the signers' names."""
    signers = "(SELECT measurement_id, list(DISTINCT signer) AS signers FROM db.merged GROUP BY 1)"
    source = f"db.measurement JOIN {signers} USING (measurement_id)"
    rows = [dict(zip(_SHARED, values, strict=True)) for values in database.query(_grouped(_SHARED, source))]
    return [row | {"signers": [signer_name(key) for key in row["signers"]]} for row in rows]


def _grouped(columns: Mapping[str, str], source: str) -> str:
    named = ", ".join(f"{expression} AS {name}" for name, expression in columns.items())
    return f"SELECT {named} FROM {source} JOIN db.problem AS problem USING (problem_id) GROUP BY ALL ORDER BY ALL"
