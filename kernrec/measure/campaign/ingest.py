"""Move measurements from the journal to the database, a few thousand rows per transaction.

After a kill, the next campaign completes the move. No row is added twice, because a row's key is a hash of its content.
Measurements are stored as quarantined if the GPU drifted during their block. Measurements of a block that never ended
are marked `block_open`, and the next campaign repeats the block.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError
from kernrec.measure.campaign.journal import Journal
from kernrec.measure.device import replay
from kernrec.measure.protocol import measure_config
from kernrec.op import Problem
from kernrec.store import Database
from kernrec.store.intake.row_checks import is_possible
from kernrec.store.measurement import Measurement, Outcome

_AHEAD = timedelta(days=1)
"""Maximum time by which the newest measurement in a database may be later than this machine's clock."""
_TOGETHER = 5000
"""Maximum number of rows per transaction."""
_OUR_PROTOCOLS = (measure_config.VERSION, replay.PROTOCOL_VERSION)


def check_takes_rows(database: Path) -> None:
    """Raise `UsageError` if rows cannot be added to a database or this machine's clock is wrong."""
    now = datetime.now(UTC)
    if not is_possible(now):
        raise UsageError(
            f"the clock of this machine shows {now:%Y-%m-%d %H:%M}, which is impossible: set it, then measure"
        )
    if not database.exists():
        return
    Database.open(database, read_only=False).close()
    with Database.open(database) as opened:
        ((newest,),) = opened.query("SELECT max(measured_at) FROM db.measurement")
    if newest is not None and newest.replace(tzinfo=UTC) > now + _AHEAD:
        raise UsageError(
            f"the clock of this machine shows {now:%Y-%m-%d %H:%M}, but {database} has a measurement of"
            f" {newest:%Y-%m-%d %H:%M}: set the clock (or `kernrec db verify --remove`, if that row is wrong)"
        )


def ingest(journal: Journal, note: Callable[[str], None] = lambda text: None, ended_only: bool = False) -> int:
    """Move a journal's measurements to its database, and return the number of new rows. If `ended_only` is
    True, skip blocks of measurements that are still running.

    Invalid records are appended to `<journal>.damaged`, and `note` receives a message. If the database cannot store the
    measurements, raise `UsageError`, and leave the measurements in the journal.
    """
    stored, damaged = 0, list[Mapping[str, Any]]()
    while (batch := journal.batch(_TOGETHER, ended_only))[0]:
        ids, records = batch
        rows = list(_readable(records, damaged))
        with Database.open(journal.database, read_only=False, create=True) as opened:
            try:
                opened.add_measurements(measurement for _, measurement in rows)
            except UsageError:
                fitting = [_fits(measurement) for _, measurement in rows]
                if all(fitting):
                    raise  # Each row is valid by itself, so the error has another cause.
                damaged += [record for (record, _), fits in zip(rows, fitting, strict=True) if not fits]
                rows = [row for row, fits in zip(rows, fitting, strict=True) if fits]
                opened.add_measurements(measurement for _, measurement in rows)
            aside = journal.path.with_name(f"{journal.path.name}.damaged")
            if damaged:
                with aside.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(record) + "\n" for record in damaged)
                note(f"{len(damaged)} records of {journal.path} are not measurements; they were put into {aside.name}")
                damaged.clear()
            journal.delete(ids)
        stored += len(rows)
    return stored


def _fits(measurement: Measurement) -> bool:
    with Database.memory() as database:
        try:
            database.add_measurements([measurement])
        except UsageError:
            return False
    return True


def earlier_measurements(database: Path, problem: Problem, gpu: str) -> list[Measurement]:
    """Return a problem's valid measurements on a GPU model. Return an empty list if there is no database."""
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
        if measurement.outcome != Outcome.QUARANTINED and measurement.protocol_version in _OUR_PROTOCOLS
    ]


def measurements_of(records: Iterable[Mapping[str, Any]]) -> Iterator[Measurement]:
    """Return the measurements in journal records. Skip invalid records.

    A record of a measurement is `{"row": columns}` (`Measurement.as_json`). A record of the end of a block is
    `{"closed": block, "session": session}` or, if the GPU drifted, `{"drifted": block, "session": session, "error":
    text}`.
    """
    return (measurement for _, measurement in _readable(list(records), []))


def _readable(
    records: Sequence[Mapping[str, Any]], damaged: list[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Measurement]]:
    """Yield (record, measurement) for each valid measurement, and append invalid records to `damaged`."""
    drifted = {key: str(record.get("error")) for record in records if (key := _session_and_block(record, "drifted"))}
    closed = {key for record in records if (key := _session_and_block(record, "closed"))}
    for record in records:
        if "row" not in record:
            continue
        try:
            measurement = Measurement.from_columns(dict(record["row"]))
            block = measurement.session, measurement.block
            hash(block)
        except (UsageError, TypeError, ValueError, KeyError, AttributeError):
            damaged.append(record)
            continue
        if measurement.outcome == Outcome.OK and block in drifted:
            measurement = replace(measurement, outcome=Outcome.QUARANTINED, error=drifted[block])
        elif measurement.outcome == Outcome.OK and block not in closed:
            measurement = replace(measurement, block_open=True)
        yield record, measurement


def _session_and_block(record: Mapping[str, Any], key: str) -> tuple[str, int] | None:
    session, block = record.get("session"), record.get(key)
    return (session, block) if isinstance(session, str) and type(block) is int else None
