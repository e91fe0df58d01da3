"""Withdraw measurements in the user's database, in a shared folder or server, and in copies of the rows.

A withdrawn measurement stays in its database, but answers no longer use it. A withdrawal in a database (table
`retraction`) applies only to that database. A shared withdrawal applies to all copies of a measurement, which have
the same hash of public columns (`outgoing.likeness_key`).
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.keys import Signer, own_key, signer_name, trusted
from kernrec.store.measurement_log import RETRACTED
from kernrec.store.rows import Row
from kernrec.store.share.bundle import write_content
from kernrec.store.share.manifest import MOST_WITHDRAWN, Withdrawal
from kernrec.store.share.outgoing import MADE_BY, likeness_key, now
from kernrec.store.share.place import BUNDLE, Place, writable_names
from kernrec.store.share.pull import take_new
from kernrec.store.share.pulled import apply_withdrawal, settle, working_on
from kernrec.util.files import scratch_folder


def retraction_rows(keys: Iterable[str], reason: str) -> list[Row]:
    """Return rows of the table `retraction` that withdraw the measurements with the given keys now."""
    row = {"reason": reason, "signer": "", "signature": ""}
    row["retracted_at"] = datetime.now(UTC).replace(microsecond=0, tzinfo=None).isoformat()
    return [{"measurement_id": key, **row} for key in keys]


def retracted(database: Database) -> int:
    ((count,),) = database.query(RETRACTED)
    return int(count)


def forget(database: Database, signer: str) -> int:
    """Delete a signer's withdrawals from a database. Return how many measurements are valid again."""
    before = retracted(database)
    database.change([f"DELETE FROM db.retraction WHERE signer = {quoted(signer)}"])
    database.rescale()
    return before - retracted(database)


Agree = Callable[[Sequence[Row]], bool]
"""Function that receives the measurements before anything is written. If it returns False, nothing is written."""
Sessions = Mapping[str, list[str]]
"""`likeness_key` of each measurement, keyed by session."""

_SHOWN = ("measurement_id", "measured_at", "session", "gpu", "kernel", "key", "tunables", "latency_s")
_COPIED = ("measurement_id", "signer", "reason", "retracted_at")


def withdraw_here(path: Path, condition: str, reason: str, *, agree: Agree) -> int:
    """Withdraw measurements in a database, and return their number.

    Args:
        condition: SQL condition on `measurement JOIN problem JOIN config` that selects the measurements.
        reason: Reason to store with each withdrawal.
        agree: Function that receives the selected measurements and returns whether to withdraw them.
    """
    with Database.open(path, read_only=False) as database:
        rows = _chosen(database, condition)
        if not rows or not agree(rows):
            return 0
        _add(database, [str(row["measurement_id"]) for row in rows], reason)
    return len(rows)


def withdraw_there(
    place: Place, condition: str, signer: Signer, reason: str, *, agree: Agree, own: Path | None = None
) -> int:
    """Withdraw measurements that the user pushed to a place (shared folder or server), and return their number.

    Args:
        condition, reason, agree: See `withdraw_here`.
        own: Path of the user's database, in which to withdraw the same measurements. May be None.

    Raises:
        UsageError: The user has pushed no selected measurement, or kernrec 0.1 wrote `place`.
    """
    names = writable_names(place)
    with working_on(path := paths.pulled()), scratch_folder() as folder:
        take_new(place, path, {signer.key}, names)
        rows: list[Row] = []
        if path.exists():
            with Database.open(path) as pulled:
                rows = _chosen(pulled, f"{condition} AND measurement_id IN ({_pushed(signer, names)})")
        if not rows:
            raise UsageError(f"your key has pushed no such measurements to {place.title}; nothing was withdrawn")
        if not agree(rows):
            return 0
        chosen = f"WHERE measurement_id IN ({_listed(str(row['measurement_id']) for row in rows)})"
        with Database.open(path) as pulled:
            pairs = pulled.query(f"SELECT session, {likeness_key(pulled)} FROM db.measurement {chosen}")
            file = _likenesses(pulled, chosen, folder)
        if own is not None:
            with Database.open(own, read_only=False) as database:
                alike = database.query(f"SELECT measurement_id FROM ({_alike(database, file)})")
                _add(database, [str(key) for (key,) in alike], reason)
        publish(place, path, _by_session(pairs), signer, reason)
        settle(path)
    return len(rows)


def publish(place: Place, path: Path, sessions: Sessions, signer: Signer, reason: str) -> None:
    """Write withdrawals to `place`, and apply them to the pulled rows. The caller must hold the lock `working_on`."""
    pairs = [(session, row) for session, rows in sessions.items() for row in rows]
    for start in range(0, len(pairs), MOST_WITHDRAWN):
        part = _by_session(pairs[start : start + MOST_WITHDRAWN])
        withdrawal = Withdrawal(part, now(), MADE_BY, reason, signer.key)
        content = withdrawal.to_bytes() + b"\n" + signer.sign(withdrawal.to_bytes())
        name = f"withdrawn/{hashlib.sha256(content).hexdigest()}.json"
        write_content(place, name, content)
        apply_withdrawal(path, name, withdrawal)


def withdrawn_here(path: Path, database: Database, signer: Signer, names: Sequence[str]) -> dict[str, Sessions]:
    """Return the shared measurements that the user has pushed and later withdrawn in `database`, keyed by reason.

    `names` are the shared bundles, and `path` is the database of rows that were pulled from other people.
    """
    mine = (
        "SELECT measurement_id, any_value(reason) AS reason FROM db.retraction "
        f"WHERE signer IN ('', {quoted(signer.key)}) GROUP BY ALL"
    )
    with scratch_folder() as folder:
        file = _likenesses(database, f"JOIN ({mine}) USING (measurement_id)", folder, ", reason")
        by_reason: dict[str, list[tuple[str, str]]] = {}
        with Database.open(path) as pulled:
            pushed = f"{_alike(pulled, file)} WHERE rows.measurement_id IN ({_pushed(signer, names)})"
            query = f"SELECT DISTINCT reason, session, likeness FROM ({pushed}) ORDER BY ALL"
            for reason, session, likeness in pulled.query(query):
                by_reason.setdefault(str(reason), []).append((session, likeness))
    return {reason: _by_session(pairs) for reason, pairs in by_reason.items()}


def withdraw_copies(path: Path) -> dict[str, int]:
    """Apply other people's withdrawals to the database at `path`, which may have copies of the withdrawn measurements.

    A copy stays in use if the user or another signer still shares the measurement. `kernrec db trust KEY --remove` ends
    the effect of a signer's withdrawals. Return the number of newly withdrawn measurements, keyed by signer's name.
    """
    gone: Counter[str] = Counter()
    keys = [key for key in (*trusted(), own_key()) if key]
    if not (path.exists() and paths.pulled().exists() and keys):
        return gone
    with scratch_folder() as folder:
        with Database.open(paths.pulled()) as pulled:
            shared = (
                f"SELECT {likeness_key(pulled)} FROM db.measurement WHERE session IN (SELECT session FROM db.withdrawn)"
            )
            query = (
                "SELECT likeness, session, signer, arg_min(reason, withdrawn_at) AS reason,"
                " min(withdrawn_at) AS retracted_at, bool_or(shared) AS shared FROM db.withdrawn"
                f" WHERE signer IN ({_listed(keys)}) AND likeness NOT IN ({shared}) GROUP BY ALL"
            )
            file, count = pulled.export(query, folder)
        if not count:
            return gone
        with Database.open(path) as database:
            query = (
                f"SELECT {', '.join(f'rows.{name}' if name == 'measurement_id' else name for name in _COPIED)}"
                f" FROM ({_alike(database, file)}) AS rows LEFT JOIN (SELECT DISTINCT measurement_id, signer, true AS"
                " mine FROM db.merged) AS theirs USING (measurement_id, signer)"
                " ANTI JOIN db.retraction USING (measurement_id, signer) WHERE shared OR mine ORDER BY signer"
            )
            rows = [dict(zip(_COPIED, row, strict=True)) | {"signature": ""} for row in database.query(query)]
    if rows:
        with Database.open(path, read_only=False) as database:
            for signer in dict.fromkeys(str(row["signer"]) for row in rows):
                before = retracted(database)
                database.add("retraction", [row for row in rows if row["signer"] == signer])
                gone[signer_name(signer)] += retracted(database) - before
            database.rescale()
    return +gone


def _by_session(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    sessions: dict[str, list[str]] = {}
    for session, row in sorted(set(pairs)):
        sessions.setdefault(session, []).append(row)
    return sessions


def _chosen(database: Database, condition: str) -> list[Row]:
    query = (
        f"SELECT {', '.join(_SHOWN)} FROM (SELECT * EXCLUDE kernel FROM db.config) JOIN db.measurement "
        "USING (config_id) JOIN db.problem USING (problem_id) "
        f"WHERE {condition} AND measurement_id NOT IN (SELECT measurement_id FROM db.retraction) "
        "ORDER BY measured_at, measurement_id"
    )
    return [dict(zip(_SHOWN, row, strict=True)) for row in database.query(query)]


def _add(database: Database, keys: Iterable[str], reason: str) -> None:
    database.add("retraction", retraction_rows(dict.fromkeys(keys), reason))
    database.rescale()


def _likenesses(database: Database, rest: str, folder: Path, more: str = "") -> Path:
    """Write a Parquet file with a row for each measurement: its session, its `likeness_key`, and further columns.

    Args:
        rest: SQL after `FROM db.measurement`.
        more: SQL of the further columns, with a leading comma.
    """
    query = f"SELECT session, {likeness_key(database)} AS likeness{more} FROM db.measurement {rest}"
    return database.export(query, folder)[0]


def _alike(database: Database, file: Path) -> str:
    database.keep("alike", "SELECT DISTINCT * FROM {rows}", file)
    rows = (
        f"SELECT *, {likeness_key(database)} AS likeness FROM db.measurement"
        " WHERE session IN (SELECT session FROM alike)"
    )
    return f"SELECT rows.measurement_id, alike.* FROM ({rows}) AS rows JOIN alike USING (likeness)"


def _pushed(signer: Signer, names: Sequence[str]) -> str:
    listed = _listed(name for name in names if BUNDLE.fullmatch(name))
    return f"SELECT measurement_id FROM db.merged WHERE signer = {quoted(signer.key)} AND bundle IN ({listed})"


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(map(quoted, keys)) or "NULL"
