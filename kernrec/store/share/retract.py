"""Taking measurements back: in a database of one's own, at a remote that they were pushed to, and in copies of them.

In a database a retraction names a measurement by its key (`kernrec.store.retractions`). A row that leaves has another
key, because private columns leave in another form: `retract_here` names both, so that bundles can carry the second. At
a remote it is a document of the log (`manifest.Retraction`); a push writes one for what was taken back here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.keys import Signer, own_key, signer_name, trusted
from kernrec.store.remotes import Remote, remotes
from kernrec.store.retractions import retracted, retraction_rows
from kernrec.store.rows import Row
from kernrec.store.share.entries import publish
from kernrec.store.share.manifest import MOST_RETRACTED, Retraction
from kernrec.store.share.object_store import place_of
from kernrec.store.share.outgoing import MADE_BY, likeness_key, now, shared_keys
from kernrec.store.share.place import Place
from kernrec.store.share.privacy import secret_of
from kernrec.store.share.pull import take_new
from kernrec.store.share.pulled import Pulled, working_on
from kernrec.util.scratch import scratch_folder

Agree = Callable[[Sequence[Row]], bool]
"""Is shown the rows before anything is written; False: nothing is."""

_SHOWN = ("measurement_id", "measured_at", "session", "gpu", "kernel", "key", "tunables", "latency_s")
_COPIED = ("measurement_id", "signer", "reason", "retracted_at")


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
    """Take back measurements that this key pushed to a remote; returns how many no longer answer there.

    The arguments are as for `retract_here`; `own` is a database in which the same measurements no longer answer either.
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
                files = _likenesses(pulled.database, f"WHERE measurement_id IN ({_listed(keys)})", folder)
            secret = secret_of(own)
            with Database.open(own, read_only=False) as database:
                alike = database.query(f"SELECT measurement_id FROM ({_alike(database, files)})")
                _add(database, [str(key) for (key,) in alike], secret, signer, reason)
        return publish_retraction(remote, place, keys, signer, reason)


def publish_retraction(remote: Remote, place: Place, keys: Sequence[str], signer: Signer, reason: str) -> int:
    """Write to a remote's log that measurements are taken back; the caller holds `working_on`.

    Returns:
        How many of what was pulled no longer answer.
    """
    gone = 0
    for start in range(0, len(keys), MOST_RETRACTED):
        document = Retraction(tuple(keys[start : start + MOST_RETRACTED]), now(), MADE_BY, reason, signer.key)
        entry = publish(remote, place, document, signer)
        with Pulled.open(remote) as pulled:
            gone += pulled.retract(entry)[0]
            pulled.settle()
    return gone


def retracted_here(remote: Remote, database: Database, signer: Signer) -> dict[str, list[str]]:
    """By reason, the keys at a remote of what this key pushed there and took back in a database since."""
    mine = (
        "SELECT measurement_id, any_value(reason) AS reason FROM db.retraction "
        f"WHERE signer IN ('', {quoted(signer.key)}) GROUP BY ALL"
    )
    with scratch_folder() as folder:
        files = _likenesses(database, f"JOIN ({mine}) USING (measurement_id)", folder, ", reason")
        if not files:
            return {}
        by_reason: dict[str, list[str]] = {}
        with Pulled.open(remote) as pulled:
            alike = f"{_alike(pulled.database, files)} WHERE {_pushed_by(signer)}"
            for key, reason in pulled.database.query(f"SELECT measurement_id, reason FROM ({alike}) ORDER BY ALL"):
                by_reason.setdefault(str(reason), []).append(str(key))
    return by_reason


def retract_copies(path: Path) -> dict[str, int]:
    """Apply retractions at remotes, as far as they were pulled, to the copies of measurements in a database.

    Rows come into a database by many ways: a bundle, a colleague's file, the file of what was pulled. A copy stays in
    the log and answers no more once a trusted key takes back what it shared at a remote, unless somebody else whose
    rows were pulled from there, the user among them, still shares the same measurement. The row of `retraction` that
    says so here names the signer and has no signature, because what was signed is a document of the remote's log:
    others do not believe it, and `kernrec db trust KEY --remove` ends it.

    Args:
        path: of the database; there may be none.

    Returns:
        How many measurements no longer answer, by who took them back, as answers call them.
    """
    gone: Counter[str] = Counter()
    keys = [key for key in (*trusted(), own_key()) if key]
    if not (path.exists() and keys):
        return gone
    for remote in remotes():
        with scratch_folder() as folder:
            if remote.pulled.exists() and (files := _taken_back(remote, keys, folder)):
                gone += _retract(path, files)
    return gone


def retract_at_others() -> dict[str, int]:
    """Apply the retractions at each remote, as far as it was pulled, to what the same keys shared at all others.

    Whoever copies what was pushed to one remote to another cannot copy it back to life. Returns how many measurements
    no longer answer, by remote.
    """
    gone: Counter[str] = Counter()
    pulled = [remote for remote in remotes() if remote.pulled.exists()]
    for remote in pulled:
        with scratch_folder() as folder:
            files = []
            for other in pulled:
                if other != remote:
                    with Pulled.read(other) as rows:
                        files += rows.retractions(folder)
            if files:
                with working_on(remote), Pulled.open(remote) as rows:
                    gone[remote.name] += rows.retract_elsewhere(files)
                    rows.settle()
    return +gone


def _taken_back(remote: Remote, keys: Iterable[str], folder: Path) -> list[Path]:
    """Files of the measurements that one of `keys` shared at a remote and took back, and that nobody shares there."""
    with Pulled.read(remote) as pulled:
        kinds = pulled.database.columns("measurement")
        if not pulled.says_when_retracted:
            return []
        alike = f"SELECT {likeness_key(kinds)} FROM db.measurement WHERE session IN (SELECT session FROM db.retracted)"
        query = f"""
            SELECT measurement_id, signer, arg_min(reason, retracted_at) AS reason, min(retracted_at) AS retracted_at,
                   any_value(session) AS session, any_value(likeness) AS likeness
            FROM db.retracted JOIN db.origin USING (measurement_id, signer)
            WHERE signer IN ({_listed(keys)}) AND retracted_at IS NOT NULL
                AND measurement_id NOT IN (SELECT measurement_id FROM db.measurement)
                AND (likeness IS NULL OR likeness NOT IN ({alike}))
            GROUP BY measurement_id, signer ORDER BY ALL
        """
        return [file for file, _ in pulled.database.export(query, folder)]


def _retract(path: Path, files: list[Path]) -> Counter[str]:
    """Take back the copies of measurements in files; how many no longer answer, by who took them back."""
    with Database.open(path) as database:
        likeness = likeness_key(database.columns("measurement"))
        database.keep("taken_back", "SELECT * FROM {rows}", {"rows": files})
        # A copy has the key that it was shared with, or that of its owner's database, where nothing private is missing.
        query = f"""
            SELECT measurement_id, signer, reason, retracted_at FROM (
                SELECT * EXCLUDE (session, likeness) FROM taken_back SEMI JOIN db.measurement USING (measurement_id)
                UNION
                SELECT copy.measurement_id, signer, reason, retracted_at
                FROM taken_back JOIN (
                    SELECT measurement_id, {likeness} AS likeness FROM db.measurement
                    WHERE session IN (SELECT session FROM taken_back)
                ) AS copy USING (likeness)
            ) ANTI JOIN db.retraction USING (measurement_id, signer) ORDER BY signer
        """
        rows = [dict(zip(_COPIED, row, strict=True)) | {"signature": ""} for row in database.query(query)]
    gone: Counter[str] = Counter()
    if rows:
        with Database.open(path, read_only=False) as database:
            for signer in dict.fromkeys(str(row["signer"]) for row in rows):
                before = retracted(database)
                database.add("retraction", [row for row in rows if row["signer"] == signer])
                gone[signer_name(signer)] += retracted(database) - before
            database.rescale()
    return +gone


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
    database.rescale()


def _likenesses(database: Database, rest: str, folder: Path, more: str = "") -> list[Path]:
    """Files of what measurements are but for their private columns; with their sessions, which are quick to compare.

    Args:
        database: to read.
        rest: of the query, after `FROM db.measurement`.
        folder: for the files.
        more: columns beside.
    """
    likeness = likeness_key(database.columns("measurement"))
    query = f"SELECT session, {likeness} AS likeness{more} FROM db.measurement {rest}"
    return [file for file, _ in database.export(query, folder)]


def _alike(database: Database, files: list[Path]) -> str:
    """The query for measurements that are alike those of files, which are moved away."""
    database.keep("alike", "SELECT DISTINCT * FROM {rows}", {"rows": files})
    likeness = likeness_key(database.columns("measurement"))
    rows = "SELECT * FROM db.measurement WHERE session IN (SELECT session FROM alike)"
    return (
        f"SELECT rows.measurement_id, alike.* FROM (SELECT *, {likeness} AS likeness FROM ({rows})) AS rows "
        "JOIN alike USING (likeness)"
    )


def _pushed_by(signer: Signer) -> str:
    return f"measurement_id IN (SELECT measurement_id FROM db.origin WHERE signer = {quoted(signer.key)})"


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(map(quoted, keys)) or "NULL"
