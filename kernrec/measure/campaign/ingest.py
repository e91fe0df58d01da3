"""From the journal into the database: all records in one transaction, and the journal is emptied only after it.

Killed in between, the next collector does the same again: a row's key is the hash of its content, so what is there
already is not added twice. Rows of a block that ended with the card having drifted are stored as quarantined; those of
one that never ended, for the run was stopped or killed, are kept with a remark, and the next run measures them again.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernrec.measure.campaign.journal import Journal
from kernrec.measure.campaign.results import UNCLOSED
from kernrec.measure.device import replay
from kernrec.measure.protocol import measure_config
from kernrec.op import Problem, problem_from_key
from kernrec.store import Database

_OURS = (measure_config.VERSION, replay.PROTOCOL_VERSION)


def ingest(journal: Journal, database: Path) -> int:
    """Bring what the journal holds into the database, made if there is none; gives how many rows that were.

    Raises `UsageError` when the database cannot take them; the journal still has them then.
    """
    rows: list[dict[str, Any]] = []

    def store(records: list[dict[str, Any]]) -> None:
        rows.extend(rows_of(records))
        if rows:
            with Database.open(database, read_only=False, create=True) as opened:
                opened.add_measurements(rows)

    journal.drain(store)
    return len(rows)


def known_rows(database: Path, problem: Problem, gpu: str, uuid_hash: str | None) -> list[dict[str, Any]]:
    """What a database holds of a problem on one card, by today's protocol; without what was quarantined.

    Each row has `tunables`, the canonical text of its config, and `config`, besides the columns of its table.
    """
    if not database.exists():
        return []
    with Database.open(database) as opened:
        problems = opened.rows("problem", key=problem.key)
        if not problems:
            return []
        rows = opened.rows("measurement", gpu=gpu, problem_id=problems[0]["problem_id"])
        configs = {row["config_id"]: str(row["tunables"]) for row in opened.rows("config")}
    return [
        row | {"tunables": configs[row["config_id"]], "config": json.loads(configs[row["config_id"]])}
        for row in rows
        if row["device_uuid_hash"] == uuid_hash and row["outcome"] != "quarantined" and row["protocol_version"] in _OURS
    ]


def rows_of(records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows that a journal's records stand for.

    Records are `{"row": {columns}}` and, of each block that ended, `{"closed": block, "session": session}` or, when the
    reference kernels had drifted, `{"drifted": block, "session": session, "error": text}`. A row's problem is there in
    full, for it may be one that only the spec of a user's kernel declares.
    """
    records = list(records)
    drifted = {(record["session"], record["drifted"]): record["error"] for record in records if "drifted" in record}
    closed = {(record["session"], record["closed"]) for record in records if "closed" in record}
    for record in records:
        if "row" not in record:
            continue
        row = dict(record["row"])
        error = drifted.get((row["session"], row.get("block")))
        if error is not None and row["outcome"] == "ok":
            row |= {"outcome": "quarantined", "error": error}
        elif row["outcome"] == "ok" and (row["session"], row.get("block")) not in closed:
            row |= {"error": UNCLOSED}
        if isinstance(row["problem"], str):  # its key alone, in a journal that an earlier version left behind
            row["problem"] = problem_from_key(row["problem"])
        yield row
