"""Taking measurements back: in a database of one's own, and at a remote that they were pushed to.

In a database a retraction names a measurement by its key (`kernrec.store.retractions`). What leaves has another key,
because private columns leave in another form: `retract_here` names both, so that bundles can carry the second. At a
remote it is a document of the log (`kernrec.store.share.retraction`); a push writes one for what was taken back here.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.remotes import Remote
from kernrec.store.retractions import retraction_rows
from kernrec.store.rows import Row
from kernrec.store.share.entries import Entry, publish
from kernrec.store.share.object_store import place_of
from kernrec.store.share.outgoing import MADE_BY, now
from kernrec.store.share.place import Place
from kernrec.store.share.privacy import secret_of
from kernrec.store.share.pull import take_new
from kernrec.store.share.pulled import Pulled, working_on
from kernrec.store.share.retraction import MOST_ROWS, Retraction
from kernrec.store.share.segments import likeness_key, shared_keys
from kernrec.store.signature import Signer
from kernrec.util.scratch import scratch_folder

Agree = Callable[[Sequence[Row]], bool]
"""Is shown the rows before anything is written; False: nothing is."""

_SHOWN = ("measurement_id", "measured_at", "session", "gpu", "kernel", "key", "tunables", "latency_s")


def retract_here(path: Path, condition: str, signer: Signer | None, reason: str, *, agree: Agree) -> int:
    """Take measurements of a database back; returns how many no longer answer.

    Args:
        path: of the database.
        condition: which, in SQL about `measurement JOIN problem JOIN config`.
        signer: who takes them back; None: others to whom the database is merged do not believe it.
        reason: for whoever reads the log.
        agree: see `Agree`.
    """
    secret = secret_of(path)
    with Database.open(path, read_only=False) as database:
        rows = _chosen(database, condition)
        if not rows or not agree(rows):
            return 0
        _add(database, [str(row["measurement_id"]) for row in rows], secret, signer, reason)
    return len(rows)


def retract_there(
    remote: Remote, condition: str, signer: Signer, reason: str, *, agree: Agree, own: Path | None = None
) -> int:
    """Take back measurements that this key pushed; returns how many no longer answer at the remote.

    Args:
        remote: which they were pushed to.
        condition: as `retract_here` takes it.
        signer: who pushed them.
        reason: for whoever reads the log.
        agree: see `Agree`.
        own: a database in which the same measurements no longer answer either.
    """
    place = place_of(remote.url)
    with working_on(remote), scratch_folder() as folder:
        take_new(remote, place, lambda key: key == signer.key)
        rows: list[Row] = []
        if remote.pulled.exists():
            with Pulled.read(remote) as pulled:
                rows = _chosen(pulled.database, f"{condition} AND {_pushed_by(signer)}")
        if not rows:
            raise UsageError(f"your key has pushed no such measurements to {remote.name}; nothing was retracted")
        if not agree(rows):
            return 0
        keys = [str(row["measurement_id"]) for row in rows]
        if own is not None:
            with Pulled.read(remote) as pulled:
                alike = _likenesses(pulled.database, f"measurement_id IN ({_listed(keys)})", folder)
            _retract_alike(own, alike, signer, reason)
        return publish_retraction(remote, place, keys, signer, reason)


def publish_retraction(remote: Remote, place: Place, keys: Sequence[str], signer: Signer, reason: str) -> int:
    """Write to a remote's log that measurements are taken back; the caller holds `working_on`.

    Returns:
        How many of what was pulled no longer answer.
    """
    retracted = 0
    for start in range(0, len(keys), MOST_ROWS):
        document = Retraction(tuple(keys[start : start + MOST_ROWS]), now(), MADE_BY, reason, signer.key)
        entry = publish(remote, place, Entry("", document), signer)
        with Pulled.open(remote) as pulled:
            retracted += pulled.retract(entry)[0]
    return retracted


def retracted_here(remote: Remote, database: Database, signer: Signer) -> dict[str, list[str]]:
    """What this key pushed to a remote and took back in a database since: keys at the remote, by the reason."""
    mine = (
        "SELECT measurement_id, any_value(reason) AS reason FROM db.retraction "
        f"WHERE signer IN ('', {quoted(signer.key)}) GROUP BY ALL"
    )
    with scratch_folder() as folder:
        alike = _likenesses(database, "true", folder, f"JOIN ({mine}) USING (measurement_id)", "reason")
        if not alike:
            return {}
        by_reason: dict[str, list[str]] = {}
        with Pulled.open(remote) as pulled:
            selected = _alike(pulled.database, alike, _pushed_by(signer))
            for key, reason in pulled.database.query(f"SELECT measurement_id, reason FROM ({selected}) ORDER BY ALL"):
                by_reason.setdefault(str(reason), []).append(str(key))
    return by_reason


def _chosen(database: Database, condition: str) -> list[Row]:
    query = (
        f"SELECT {', '.join(_SHOWN)} FROM (SELECT * EXCLUDE kernel FROM db.config) JOIN db.measurement "
        "USING (config_id) JOIN db.problem USING (problem_id) "
        f"WHERE {condition} AND measurement_id NOT IN (SELECT measurement_id FROM db.retraction) "
        "ORDER BY measured_at, measurement_id"
    )
    return [dict(zip(_SHOWN, row, strict=True)) for row in database.query(query)]


def _add(database: Database, keys: Iterable[str], secret: str, signer: Signer | None, reason: str) -> None:
    rows = f"db.measurement WHERE measurement_id IN ({_listed(keys)})"
    pairs = database.query(shared_keys(database.columns("measurement"), secret, rows))
    database.add("retraction", retraction_rows(dict.fromkeys(key for pair in pairs for key in pair), reason, signer))


def _retract_alike(path: Path, alike: list[Path], signer: Signer, reason: str) -> None:
    secret = secret_of(path)
    with Database.open(path, read_only=False) as database:
        keys = database.query(f"SELECT measurement_id FROM ({_alike(database, alike, 'true')})")
        _add(database, [str(key) for (key,) in keys], secret, signer, reason)


def _likenesses(database: Database, condition: str, folder: Path, joined: str = "", more: str = "") -> list[Path]:
    """Files of what measurements are but for their private columns; with their sessions, which are quick to compare."""
    likeness = likeness_key(database.columns("measurement"))
    names = ", ".join(filter(None, ("session", f"{likeness} AS likeness", more)))
    query = f"SELECT {names} FROM db.measurement {joined} WHERE {condition}"
    return [file for file, _ in database.export(query, folder, 10**9)]


def _alike(database: Database, files: list[Path], condition: str) -> str:
    """The query for measurements that are alike those of files, which are moved away."""
    database.keep("alike", "SELECT DISTINCT * FROM {rows}", {"rows": files})
    likeness = likeness_key(database.columns("measurement"))
    rows = "SELECT * FROM db.measurement WHERE session IN (SELECT session FROM alike)"
    return (
        f"SELECT rows.measurement_id, alike.* FROM (SELECT *, {likeness} AS likeness FROM ({rows})) AS rows "
        f"JOIN alike USING (likeness) WHERE {condition}"
    )


def _pushed_by(signer: Signer) -> str:
    return f"measurement_id IN (SELECT measurement_id FROM db.origin WHERE signer = {quoted(signer.key)})"


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(map(quoted, keys)) or "NULL"
