"""Manage the database of pulled rows, which were copied from other people's bundles.

The table `merged` records the bundle and the signer of each row. A row is deleted when all its signers have withdrawn
it. All rows of a bundle are added in one transaction.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, file_errors
from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.exchange import MEASUREMENTS, SOURCES
from kernrec.store.gpu_scales import scale_statements
from kernrec.store.intake import adding_to
from kernrec.store.query_file import query_file
from kernrec.store.schema import views_sql
from kernrec.store.share.bundle import Bundle
from kernrec.store.share.manifest import Withdrawal
from kernrec.store.share.outgoing import likeness_key
from kernrec.util.files import lock_path

_UNSETTLED = "CREATE OR REPLACE TABLE db.settled (rule VARCHAR)"
"""SQL statement that marks the table `db.gpu_scale` as outdated, until `settle` updates it."""
_IS_SETTLED = "SELECT count(*) FROM duckdb_tables() WHERE database_name = 'db' AND table_name = 'settled'"
_WAIT_S = 10.0
"""Maximum seconds to wait for another process that pulls or pushes."""


def taken(path: Path) -> set[str]:
    """Return the names of the bundles and withdrawals that a database already contains."""
    if not path.exists():
        return set()
    with Database.open(path) as database:
        return {str(name) for (name,) in database.query("SELECT name FROM db.bundle")}


def add_bundles(path: Path, bundles: Mapping[str, Bundle], checked: Path) -> int:
    """Add the rows of bundles, and return the number of new measurements. Add nothing if an error occurs.

    Args:
        path: Path of the database, which is created if needed.
        bundles: Bundles, keyed by name. The file `exchange.SOURCES` stores positions in this mapping.
        checked: Folder with the checked rows of the bundles (`take_groups`). The files are moved out of the folder.
    """

    def then(exchange: Path) -> list[str]:
        numbers = ", ".join(
            f"({number}, {quoted(name)}, {quoted(bundle.manifest.owner)})"
            for number, (name, bundle) in enumerate(bundles.items())
        )
        rows = f"{MEASUREMENTS} JOIN read_parquet({quoted(exchange / SOURCES)}) USING (measurement_id)"
        return [
            f"INSERT INTO db.merged BY NAME SELECT DISTINCT measurement_id, gpu, problem_id, signer, bundle FROM {rows}"
            # Sort `merged` like `measurement`, so that a query of one problem reads only parts of both tables.
            f" JOIN (VALUES {numbers}) AS shared(number, bundle, signer) USING (number) ORDER BY gpu, problem_id",
            *(_note(name, bundle.manifest, bundle.manifest.rows["measurement"]) for name, bundle in bundles.items()),
            _UNSETTLED,
            *(honored if some_withdrawn else ()),
        ]

    with adding_to(path, checked) as database:
        honored, before = _honored(database), database.counts()["measurement"]
        some_withdrawn = database.query("SELECT EXISTS (FROM db.withdrawn)")[0][0]
        database.add_from(checked, then=then)
        return database.counts()["measurement"] - before


def apply_withdrawal(path: Path, name: str, withdrawal: Withdrawal) -> int:
    """Remove the measurements that a withdrawal lists, and return their number. `name` is the withdrawal's file
    name."""
    with Database.open(path, read_only=False, create=True) as database:
        before = database.counts()["measurement"]
        rows = [(row, session) for session, rows in withdrawal.sessions.items() for row in rows]
        if withdrawal.by_key:
            keys = ", ".join(quoted(row) for row, _ in rows) or "NULL"
            rows = database.query(
                f"SELECT {likeness_key(database)}, session FROM db.measurement WHERE measurement_id IN ({keys}) AND"
                f" measurement_id IN (SELECT measurement_id FROM db.merged WHERE signer = {quoted(withdrawal.owner)})"
            )
        values = ", ".join(f"({quoted(row)}, {quoted(session)})" for row, session in rows)
        about = f"{quoted(withdrawal.owner)}, session, {quoted(withdrawal.reason)}, TIMESTAMP"
        added = (
            f"INSERT INTO db.withdrawn SELECT likeness, {about} {quoted(withdrawal.created_at)}, false"
            f" FROM (VALUES {values}) AS row(likeness, session)"
        )
        statements = [added] if rows else []
        database.change([*statements, _note(name, withdrawal, 0), *_honored(database), _UNSETTLED])
        return before - database.counts()["measurement"]


def _honored(database: Database) -> list[str]:
    alike = (
        f"SELECT measurement_id, {likeness_key(database)} AS likeness FROM db.measurement"
        " WHERE session IN (SELECT session FROM db.withdrawn)"
    )
    shared = f"SELECT likeness, signer FROM ({alike}) JOIN db.merged USING (measurement_id)"
    gone = f"SELECT measurement_id, signer FROM ({alike}) JOIN db.withdrawn USING (likeness)"
    return [
        f"UPDATE db.withdrawn SET shared = true WHERE NOT shared AND (likeness, signer) IN ({shared})",
        f"DELETE FROM db.merged WHERE (measurement_id, signer) IN ({gone})",
        "DELETE FROM db.measurement WHERE measurement_id NOT IN (SELECT measurement_id FROM db.merged)",
    ]


def _note(name: str, document: Any, measurements: int) -> str:
    licence = getattr(document, "licence", "")
    values = f"{quoted(document.created_at)}, {quoted(licence)}, {measurements}"
    return f"INSERT INTO db.bundle VALUES ({quoted(name)}, {quoted(document.owner)}, TIMESTAMP {values})"


def drop_signer(path: Path, signer: str) -> int:
    """Delete the rows that only this signer shared, and return the number of deleted measurements."""
    if not path.exists():
        return 0
    with working_on(path), Database.open(path, read_only=False) as database:
        before = database.counts()["measurement"]
        database.change(
            [
                *(f"DELETE FROM db.{table} WHERE signer = {quoted(signer)}" for table in ("merged", "bundle")),
                "DELETE FROM db.measurement WHERE measurement_id NOT IN (SELECT measurement_id FROM db.merged)",
                _UNSETTLED,
            ]
        )
        _settle(database)
        return before - database.counts()["measurement"]


def settle(path: Path) -> None:
    """Update all data that is derived from the pulled rows, if rows were added or removed."""
    if path.exists():
        with Database.open(path) as database:
            settled = database.query(_IS_SETTLED)[0][0] and database.query("FROM db.settled") == [(_rule(),)]
        if not settled:
            with Database.open(path, read_only=False) as database:
                _settle(database)
        with suppress(UsageError, OSError):  # If this fails, the next query writes the cache file.
            query_file(path, Database.open)


def _settle(database: Database) -> None:
    dropped = [f"DROP TABLE IF EXISTS db.kept{name}" for name in ("", "_answers", "_failures", "_signers")]
    done = [_UNSETTLED, f"INSERT INTO db.settled VALUES ('{_rule()}')"]
    # Also delete the answers that earlier versions stored in the database.
    database.change([*scale_statements(), *dropped, *done])


def _rule() -> str:
    return sha256(views_sql().encode()).hexdigest()[:16]


def pulled_bundles(path: Path) -> Sequence[tuple[Any, ...]]:
    """Return (public key, bundles, measurements, licenses, first day, last day) for each signer of pulled bundles."""
    with Database.open(path) as database:
        return database.query(
            "SELECT signer, count(*), sum(measurements), list_sort(list(DISTINCT licence)),"
            " strftime(min(created_at), '%Y-%m-%d'), strftime(max(created_at), '%Y-%m-%d')"
            " FROM db.bundle WHERE measurements > 0 GROUP BY 1 ORDER BY ALL"
        )


@contextmanager
def working_on(path: Path) -> Iterator[None]:
    """Hold a lock that lets only one process at a time pull or push. Raise `UsageError` after `_WAIT_S` seconds."""
    lock = path.with_name(f"{path.name}.lock")
    with file_errors(lock, "written"):
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = lock_path(lock, _WAIT_S)
    if descriptor is None:
        raise UsageError("another process pushes or pulls; try again later")
    try:
        yield
    finally:
        os.close(descriptor)
