"""Copies of measurements in a database of one's own, once who shared them at a remote has taken them back there.

Rows come into a database by many ways: a bundle, a colleague's file, the file of what was pulled. A copy stays in the
log and answers no more once a trusted key takes back what it shared at a remote, unless somebody else whose rows were
pulled from there, the user among them, still shares the same measurement. The row of `retraction` that says so here
names the signer and has no signature, because what was signed is a document of the remote's log: others do not believe
it, and `kernrec db trust KEY --remove` ends it.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.remotes import Remote, remotes
from kernrec.store.retractions import retracted
from kernrec.store.share.pulled import Pulled
from kernrec.store.share.segments import likeness_key
from kernrec.store.trust import own_key, signer_name, trusted
from kernrec.util.scratch import scratch_folder

_COLUMNS = ("measurement_id", "signer", "reason", "retracted_at")


def retract_copies(path: Path) -> dict[str, int]:
    """Apply what was taken back at remotes, as far as it was pulled, to the copies in a database.

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


def _taken_back(remote: Remote, keys: Iterable[str], folder: Path) -> list[Path]:
    """Files of the measurements that one of `keys` shared at a remote and took back, and that nobody shares there."""
    with Pulled.read(remote) as pulled:
        kinds = pulled.database.columns("measurement")
        if not {*_COLUMNS, "session"} <= pulled.database.columns("retracted").keys():
            return []  # pulled by an earlier version, and nothing was taken back since
        alike = f"SELECT {likeness_key(kinds)} FROM db.measurement WHERE session IN (SELECT session FROM db.retracted)"
        query = f"""
            SELECT measurement_id, signer, arg_min(reason, retracted_at) AS reason, min(retracted_at) AS retracted_at,
                   any_value(session) AS session, any_value(likeness) AS likeness
            FROM db.retracted JOIN db.origin USING (measurement_id, signer)
            WHERE signer IN ({", ".join(map(quoted, keys))}) AND retracted_at IS NOT NULL
                AND measurement_id NOT IN (SELECT measurement_id FROM db.measurement)
                AND (likeness IS NULL OR likeness NOT IN ({alike}))
            GROUP BY measurement_id, signer ORDER BY ALL
        """
        return [file for file, _ in pulled.database.export(query, folder, 10**9)]


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
        rows = [dict(zip(_COLUMNS, row, strict=True)) | {"signature": ""} for row in database.query(query)]
    gone: Counter[str] = Counter()
    if rows:
        with Database.open(path, read_only=False) as database:
            for signer in dict.fromkeys(str(row["signer"]) for row in rows):
                before = retracted(database)
                database.add("retraction", [row for row in rows if row["signer"] == signer])
                gone[signer_name(signer)] += retracted(database) - before
    return +gone
