"""The database of rows that were pulled from a remote, and who signed each.

Beside the tables of the schema it has those of `kernrec.store.kept_answers`, and three of its own:

    pulled (manifest, signer)                       what was taken of the remote's log
    origin (measurement_id, signer,                 who shared a row; the same row may come from several; for queries
            gpu, problem_id)                        about one problem, what of it a row is about
    retracted (measurement_id, signer, likeness,    who took a row back, what it was but for its private columns, the
               session, reason, retracted_at)       session that it was measured in, why and when

A row answers as long as somebody shares it who has not taken it back; others are deleted. Rows and the record of what
was pulled enter in one transaction, so a pull that is killed is as if it had not begun, or is complete.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kernrec.errors import UsageError, file_errors
from kernrec.store.card_scales import scale_statements
from kernrec.store.connection import quoted
from kernrec.store.database import Database, replace_file
from kernrec.store.exchange import CHECKED, MEASUREMENTS, SOURCES, move_checked
from kernrec.store.kept_answers import KEEP_ABOVE, UNSETTLED, keep_statements
from kernrec.store.measurement_log import contributors
from kernrec.store.remotes import Remote
from kernrec.store.share.entries import Entry
from kernrec.store.share.manifest import Retraction
from kernrec.store.share.outgoing import likeness_key
from kernrec.util.file_lock import try_lock

_TABLES = (
    "CREATE TABLE db.pulled (manifest VARCHAR, signer VARCHAR)",
    "CREATE TABLE db.origin (measurement_id VARCHAR, signer VARCHAR, gpu VARCHAR, problem_id VARCHAR)",
    "CREATE TABLE db.retracted (measurement_id VARCHAR, signer VARCHAR, likeness VARCHAR)",
)
_LATER_COLUMNS = [
    f"ALTER TABLE db.retracted ADD COLUMN IF NOT EXISTS {column}"
    for column in ("session VARCHAR", "reason VARCHAR", "retracted_at TIMESTAMP")
]
_LATER_ORIGIN = [
    *(f"ALTER TABLE db.origin ADD COLUMN {column} VARCHAR" for column in ("gpu", "problem_id")),
    "UPDATE db.origin SET gpu = row.gpu, problem_id = row.problem_id FROM db.measurement AS row"
    " WHERE row.measurement_id = origin.measurement_id",
]
# Written as a set operation: millions of rows are no reason to look each up.
_DELETE_UNSHARED = """
    DELETE FROM db.measurement WHERE measurement_id NOT IN (
        SELECT measurement_id FROM db.origin ANTI JOIN db.retracted USING (measurement_id, signer)
    )
"""

_RETRACTED = ("measurement_id", "signer", "likeness", "session", "reason", "retracted_at")
_WAIT_S = 10.0
"""For another process that works on the same remote."""


class Pulled:
    """The open database of a remote's rows."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    @contextmanager
    def open(cls, remote: Remote) -> Iterator["Pulled"]:
        """Open it for writing; it is made if there is none."""
        if not remote.pulled.exists():
            cls._make(remote.pulled)
        with Database.open(remote.pulled, read_only=False) as database:
            if "problem_id" not in database.columns("origin"):  # an earlier version's
                database.change(_LATER_ORIGIN)
            yield cls(database)

    @staticmethod
    def _make(path: Path) -> None:
        """Make an empty one, under another name until it is complete: half a database could not be opened again."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=path.parent) as folder:
            new = Path(folder) / path.name
            with Database.open(new, read_only=False, create=True) as database:
                database.change(_TABLES)
            replace_file(new, path)

    @classmethod
    @contextmanager
    def read(cls, remote: Remote) -> Iterator["Pulled"]:
        """Open it for reading; there must be one."""
        with Database.open(remote.pulled) as database:
            yield cls(database)

    def taken(self) -> set[str]:
        """The names of the documents that were taken."""
        return {str(name) for (name,) in self.database.query("SELECT manifest FROM db.pulled")}

    def measurements(self) -> int:
        """How many measurements there are."""
        return self.database.counts()["measurement"]

    def answering(self) -> list[tuple[str, str, str, str]]:
        """Of what answers: who shared it, its GPU and kernel, and the day it was measured on, each combination once."""
        return self.database.query(
            "SELECT DISTINCT signer, gpu, kernel, strftime(measured_at, '%Y-%m-%d') FROM db.measurement JOIN ("
            "SELECT measurement_id, signer FROM db.origin ANTI JOIN db.retracted USING (measurement_id, signer))"
            " USING (measurement_id)"
        )

    def add(self, taken: Sequence[Entry], folder: Path) -> int:
        """Add the rows of manifests, all or nothing; how many measurements more there are then.

        Args:
            taken: the manifests, by the number of their group in `exchange.SOURCES`.
            folder: their rows, which were checked (`take_groups`); or of one `<table>*.parquet` files that were made
                here. They are moved away.
        """

        def rows(exchange: Path) -> None:
            move_checked(folder, exchange, apart_from=["retraction"])  # a remote's are documents of its log

        def then(exchange: Path) -> list[str]:
            signers = ", ".join(f"({number}, {quoted(entry.signer)})" for number, entry in enumerate(taken))
            if (exchange / CHECKED).exists():
                source = f"{MEASUREMENTS} JOIN read_parquet({quoted(exchange / SOURCES)}) USING (measurement_id)"
            else:
                source = f"(SELECT *, 0 AS number FROM read_parquet({quoted(exchange / 'measurement*.parquet')}))"
            return [
                "INSERT INTO db.origin BY NAME SELECT DISTINCT measurement_id, gpu, problem_id, signer"
                f" FROM (SELECT measurement_id, gpu, problem_id, number FROM {source})"
                f" JOIN (VALUES {signers}) AS shared(number, signer) USING (number)"
                # In the order of the measurements: what asks about a problem reads a part of both.
                " ANTI JOIN db.origin USING (measurement_id, signer) ORDER BY gpu, problem_id",
                *(_note(entry) for entry in taken),
                UNSETTLED,
                *([_DELETE_UNSHARED] if some_retracted else []),
            ]

        before = self.measurements()
        some_retracted = self.database.query("SELECT EXISTS (FROM db.retracted)")[0][0]
        self.database.add_from(rows, then=then)
        return self.measurements() - before

    def settle(self) -> None:
        """Derive anew what depends on all rows, where some came or went since that was done, or an earlier version did
        it: the scales of cards, and the answers that are kept."""
        if self.database.settled:
            return
        self.database.change(scale_statements(contributors("db.origin")))
        counts = self.database.query(
            "SELECT gpu, problem_id, count(*), count_if(outcome <> 'ok') FROM db.measurement GROUP BY gpu, problem_id"
            f" HAVING count(*) > {KEEP_ABOVE} ORDER BY ALL"
        )
        self.database.change(keep_statements(counts))

    def retract(self, entry: Entry) -> tuple[int, int]:
        """Apply a retraction; how many rows no longer answer, and how many its owner never shared, which stay."""
        assert isinstance(entry.document, Retraction)
        rows = ", ".join(f"({quoted(row)})" for row in dict.fromkeys(entry.document.rows)) or "(NULL)"
        rows = f"(VALUES {rows}) AS rows(measurement_id)"
        signer, before = quoted(entry.signer), self.measurements()
        likeness = likeness_key(self.database.columns("measurement"))
        ((others,),) = self.database.query(
            f"SELECT count(*) FROM db.measurement JOIN {rows} USING (measurement_id) "
            f"ANTI JOIN (FROM db.origin WHERE signer = {signer}) USING (measurement_id)"
        )
        stored = (
            f"(SELECT measurement_id, session, {likeness} AS likeness FROM db.measurement "
            f"JOIN {rows} USING (measurement_id))"
        )
        self.database.change(_LATER_COLUMNS)
        self.database.change(
            [
                f"INSERT INTO db.retracted BY NAME SELECT measurement_id, {signer} AS signer, likeness, session, "
                f"{quoted(entry.document.reason)} AS reason, TIMESTAMP {quoted(entry.document.created_at)} "
                f"AS retracted_at FROM {rows} LEFT JOIN {stored} AS stored USING (measurement_id)",
                _note(entry),
                _DELETE_UNSHARED,
                UNSETTLED,
            ]
        )
        return before - self.measurements(), int(others)

    @property
    def says_when_retracted(self) -> bool:
        """Whether it says why and when rows were taken back; not if it was pulled by an earlier version, and nothing
        was taken back since."""
        return set(_RETRACTED) <= self.database.columns("retracted").keys()

    def retractions(self, folder: Path) -> list[Path]:
        """Files of who took back which rows; none where nothing was."""
        if not self.says_when_retracted:
            return []
        return [file for file, _ in self.database.export(f"SELECT {', '.join(_RETRACTED)} FROM db.retracted", folder)]

    def retract_elsewhere(self, files: Sequence[Path]) -> int:
        """Apply retractions at another remote (`retractions`) to what the same keys shared here, too; how many rows
        no longer answer."""
        self.database.change(_LATER_COLUMNS)
        self.database.keep("elsewhere", "SELECT DISTINCT * FROM {rows}", {"rows": files})
        likeness = likeness_key(self.database.columns("measurement"))
        before = self.measurements()
        rows = (
            f"SELECT measurement_id, session, {likeness} AS likeness FROM db.measurement"
            " WHERE session IN (SELECT session FROM elsewhere)"
        )
        self.database.change(
            [
                "INSERT INTO db.retracted BY NAME SELECT DISTINCT ON (row.measurement_id, signer) row.measurement_id,"
                f" signer, row.likeness, row.session, reason, retracted_at FROM ({rows}) AS row JOIN elsewhere"
                " ON row.measurement_id = elsewhere.measurement_id OR row.likeness = elsewhere.likeness"
                " SEMI JOIN db.origin AS origin ON origin.measurement_id = row.measurement_id"
                " AND origin.signer = elsewhere.signer ANTI JOIN db.retracted AS already"
                " ON already.measurement_id = row.measurement_id AND already.signer = elsewhere.signer",
                _DELETE_UNSHARED,
                UNSETTLED,
            ]
        )
        return before - self.measurements()

    def drop(self, signer: str) -> int:
        """Delete the rows that only this signer shared; returns how many they were."""
        before = self.measurements()
        of_signer = f"WHERE signer = {quoted(signer)}"
        self.database.change(
            [f"DELETE FROM db.{table} {of_signer}" for table in ("origin", "pulled")] + [_DELETE_UNSHARED, UNSETTLED]
        )
        self.settle()
        return before - self.measurements()


def drop_signer(remote: Remote, signer: str) -> int:
    """Delete the rows of a remote that only this signer shared; returns how many they were."""
    if not remote.pulled.exists():
        return 0
    with working_on(remote), Pulled.open(remote) as pulled:
        return pulled.drop(signer)


def _note(entry: Entry) -> str:
    return f"INSERT INTO db.pulled VALUES ({quoted(entry.name)}, {quoted(entry.signer)})"


@contextmanager
def working_on(remote: Remote) -> Iterator[None]:
    """Only one process at a time pushes to a remote, or pulls from it, on this machine; another waits a little."""
    with file_errors(remote.folder, "written"):
        remote.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(remote.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        end_s = time.monotonic() + _WAIT_S
        while not try_lock(descriptor):
            if time.monotonic() >= end_s:
                raise UsageError(f"another process pushes to {remote.name}, or pulls from it; try again later")
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)
