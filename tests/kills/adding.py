"""Kill collectors, merges and imports at random moments, and count lost and repeated rows."""

import json
import os
import random
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

from kernrec.errors import KernrecError
from kernrec.measure.campaign.journal import journal_path
from kernrec.store import Database
from kernrec.store.measurement import Tier
from tests.helpers.reading import reading_here
from tests.helpers.recording import make_recording
from tests.kills.changing import kill_on_copies
from tests.kills.forked_command import ForkedCommand

Moment = tuple[str, int, int]
"""Session, block and position, which identify a row."""
_STRATEGIES = {
    "all": ["--strategy", "exhaustive"],
    "refine": ["--strategy", "refine", "--budget", "10000configs"],
    "genetic": ["--strategy", "genetic", "--objective", "energy", "--budget", "10000configs"],
}


def kill_collect(folder: Path, kills: int, configs: int, seed: int, strategy: str = "all") -> Counter[str]:
    """Kill collectors that replay a recording of `configs` configs, each within a second of its first measurement. Then
    let one collector finish. Collector, worker process, journal and database are real.

    Returns:
        Counts: `rows` in the database, `open` rows of interrupted blocks, `lost` journal rows that are not in the
        database, configs measured `again`, and `doubled`: the number by which `again` exceeds `open`.
    """
    draw = random.Random(seed)
    recording, database = make_recording(folder / "recorded.duckdb", configs), folder / "own.duckdb"
    command = ["collect", "--replay", str(recording), "--db", str(database)]
    command += _STRATEGIES[strategy]
    acknowledged: set[Moment] = set()
    for _ in range(kills):
        process = ForkedCommand(command, os.environ)
        before = _journaled(database)
        while process.status is None and _journaled(database) <= before:
            time.sleep(0.01)
        process.wait(draw.random())
        process.kill()
        acknowledged |= _journaled(database)
    ForkedCommand(command, os.environ).succeed()
    with Database.open(database) as opened:
        rows = opened.rows("measurement")
    there = {(str(row["session"]), int(str(row["block"])), int(str(row["position"]))) for row in rows}
    open_blocks = sum(bool(row["block_open"]) for row in rows)
    screens = Counter(str(row["config_id"]) for row in rows if row["tier"] == Tier.SCREEN)
    again = sum(count > 1 for count in screens.values())
    return Counter(
        rows=len(rows),
        lost=len(acknowledged - there),
        open=open_blocks,
        again=again,
        doubled=max(0, again - open_blocks),
    )


def _journaled(database: Path) -> set[Moment]:
    path = journal_path(database)
    if not path.exists():
        return set()
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as journal:
        rows = [json.loads(row)["row"] for (row,) in journal.execute("SELECT content FROM record WHERE measured")]
        return {(row["session"], row["block"], row["position"]) for row in rows}
    return set()


def kill_add(folder: Path, command: str, kills: int, rows: int, seed: int) -> Counter[str]:
    """Repeatedly start `kernrec db merge` or `db import` of `rows` rows, and kill the command at a random moment.

    Returns:
        Counts: `kills` before the command ended, `lost` or changed rows, `halved`: kills after which the database had
        only some of the new rows, and `unreadable`: kills after which the database did not open.
    """
    whole = make_recording(folder / "whole.duckdb", 500, "rtx4090")
    theirs = make_recording(folder / "theirs.duckdb", rows)
    words = ["db", command, str(theirs)]
    if command == "import":
        words = ["db", command, str(bundle := folder / "theirs.zip"), "--untrusted"]
        export = ["db", "export", "--bundle", str(bundle), "--licence", "CC0-1.0", "--db", str(theirs)]
        ForkedCommand(export, os.environ).succeed()
    with Database.open(whole) as database:
        keys = _keys(database)

    def count(own: Path, counts: Counter[str]) -> None:
        with Database.open_checked(own) as database:
            there = _keys(database)
            counts["lost"] += len(keys - there) + len(database.altered())
            counts["halved"] += 0 < len(there - keys) < rows

    (temporary := folder / "temporary").mkdir()
    with patch.dict(os.environ, {"TMPDIR": str(temporary)}):
        return kill_on_copies(folder, whole, words, kills, seed, count)


def kill_merge_by_clocks(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill merges at random moments while the machine's clock is correct, years slow or years fast. Count the same
    defects as `kill_add`, and read the database with the correct clock and with the clock of the merge."""
    draw, rows = random.Random(seed), 200
    own = make_recording(folder / "own.duckdb", 100, "rtx4090")
    theirs = make_recording(folder / "theirs.duckdb", rows)
    variables = os.environ | {"KERNREC_DB": str(own)}
    with Database.open(own) as database:
        keys = _keys(database)
    counts: Counter[str] = Counter()
    length_s = 1.0
    for number in range(kills):
        moment = draw.choice((datetime.now(UTC), datetime(2019, 1, 1, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)))
        with reading_here(), _clock(moment), patch.dict(os.environ, variables):
            if number % 5 == 4:  # a replaced file must be checked again
                shutil.copyfile(own, folder / "copy")
                os.replace(folder / "copy", own)
            started_s = time.monotonic()
            process = ForkedCommand(["db", "merge", str(theirs)], variables)
            process.wait(draw.random() * length_s)
            if process.status is not None:
                length_s = time.monotonic() - started_s
            counts["kills"] += process.kill()
            _count(own, keys, rows, counts)
        with reading_here(), patch.dict(os.environ, variables):
            _count(own, keys, rows, counts)
    return counts


def _count(own: Path, keys: set[str], rows: int, counts: Counter[str]) -> None:
    try:
        with Database.open(own) as database:
            there = _keys(database)
    except KernrecError:
        counts["unreadable"] += 1
    else:
        counts["lost"] += len(keys - there)
        counts["halved"] += 0 < len(there - keys) < rows


@contextmanager
def _clock(moment: datetime) -> Iterator[None]:
    """Set the time that row checks use in this process and in its forks."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return moment

    with ExitStack() as stack:
        for module in ("row_checks", "read_file"):
            stack.enter_context(patch(f"kernrec.store.intake.{module}.datetime", Clock))
        yield


def _keys(database: Database) -> set[str]:
    return {str(key) for (key,) in database.query("SELECT measurement_id FROM db.measurement")}
