"""From the journal into the database: all records in one transaction, after which the journal is emptied.

If the process is killed in between, the next collector does the same again: a row's key is the hash of its content, so
a row that is there already is not added twice. Measurements of a block in which the card drifted are stored as
quarantined. Those of a block that never ended, because the run was stopped or killed, are marked `block_open`, and the
next run measures their configs again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernrec.measure.campaign.journal import Journal
from kernrec.measure.device import replay
from kernrec.measure.protocol import measure_config
from kernrec.op import Problem, problem_from_key
from kernrec.store import Database
from kernrec.store.earlier_rows import upgrade_columns
from kernrec.store.measurement import Measurement, Outcome

_OUR_PROTOCOLS = (measure_config.VERSION, replay.PROTOCOL_VERSION)


def ingest(journal: Journal, database: Path) -> int:
    """Move the measurements of a journal into the database, which is created if there is none.

    Returns:
        How many measurements there were.

    Raises:
        UsageError: if the database cannot take them; the journal still has them then.
    """
    measurements: list[Measurement] = []

    def store(records: list[dict[str, Any]]) -> None:
        measurements.extend(measurements_of(records))
        if measurements:
            with Database.open(database, read_only=False, create=True) as opened:
                opened.add_measurements(measurements)

    journal.drain(store)
    return len(measurements)


def earlier_measurements(database: Path, problem: Problem, gpu: str, uuid_hash: str | None) -> list[Measurement]:
    """The measurements in a database of a problem on one card, by the present protocol, without quarantined ones.

    Args:
        database: need not exist.
        problem: the problem.
        gpu: name in the GPU catalog.
        uuid_hash: of the card; None for a replayed card.
    """
    if not database.exists():
        return []
    with Database.open(database) as opened:
        problems = opened.rows("problem", key=problem.key)
        if not problems:
            return []
        measurements = opened.measurements(gpu=gpu, problem_id=problems[0]["problem_id"])
    return [
        measurement
        for measurement in measurements
        if measurement.device.device_uuid_hash == uuid_hash
        and measurement.outcome != Outcome.QUARANTINED
        and measurement.protocol.protocol_version in _OUR_PROTOCOLS
    ]


def measurements_of(records: Iterable[Mapping[str, Any]]) -> Iterator[Measurement]:
    """The measurements in a journal's records.

    Records are `{"row": columns}` (`Measurement.as_json`) and, for each block that ended, `{"closed": block, "session":
    session}` or, if the reference kernels had drifted, `{"drifted": block, "session": session, "error": text}`. A row
    has its problem in full, because the problem may be one that only the spec of a user's kernel declares.
    """
    records = list(records)
    drifted = {(record["session"], record["drifted"]): record["error"] for record in records if "drifted" in record}
    closed = {(record["session"], record["closed"]) for record in records if "closed" in record}
    for record in records:
        if "row" not in record:
            continue
        row = upgrade_columns(record["row"])
        if isinstance(row["problem"], str):  # its key alone, in a journal that an earlier version left behind
            row["problem"] = problem_from_key(row["problem"])
        measurement = Measurement.from_columns(row)
        block = measurement.origin.session, measurement.origin.block
        if measurement.outcome == Outcome.OK and block in drifted:
            measurement = replace(measurement, outcome=Outcome.QUARANTINED, error=drifted[block])
        elif measurement.outcome == Outcome.OK and block not in closed:
            measurement = replace(measurement, origin=replace(measurement.origin, block_open=True))
        yield measurement
