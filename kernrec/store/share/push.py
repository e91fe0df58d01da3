"""Pushing: what a remote lacks of a database leaves, signed, as one manifest and its segments.

Nothing at the remote is changed, so several may push at once. Segments are named by their content and written before
the manifest that names them: a push that is killed leaves nothing that a reader sees, and the next one goes on.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.intake.checked_rows import checked_segments
from kernrec.store.remotes import Remote
from kernrec.store.rows import Row
from kernrec.store.share.bundle import signed, write_documents, write_parts
from kernrec.store.share.entries import Entry, write_index
from kernrec.store.share.manifest import TABLES
from kernrec.store.share.object_store import place_of
from kernrec.store.share.outgoing import MADE_BY, Outgoing, now, outgoing
from kernrec.store.share.place import Folder, Place
from kernrec.store.share.privacy import secret_of
from kernrec.store.share.pull import take_new
from kernrec.store.share.pulled import Pulled, working_on
from kernrec.store.share.retraction import MOST_ROWS, Retraction
from kernrec.store.share.segments import Selection, keep_fresh, likeness_hash
from kernrec.store.share.signature import Signer


def push(
    remote: Remote,
    database: Path,
    selection: Selection,
    signer: Signer,
    licence: str | None = None,
    *,
    agree: Callable[[Outgoing], bool],
) -> Outgoing | None:
    """Push the measurements of a database that a remote lacks.

    Args:
        remote: where to; what was pulled from it, or pushed to it, says what is there already.
        database: to read.
        selection: which of its measurements.
        signer: whose rows they become.
        licence: of the rows; None: the usual one.
        agree: is shown what would leave before anything does; False: nothing leaves.

    Returns:
        What left; None: there was nothing new, or it was not agreed to.

    Raises:
        KernrecError: if the remote cannot be reached or written, or would not take the rows.
    """
    place = place_of(remote.url)
    with working_on(remote), tempfile.TemporaryDirectory(prefix="kernrec-") as temporary:
        folder, checked = Path(temporary) / "segments", Path(temporary) / "checked"
        folder.mkdir()
        checked.mkdir()
        # What this key pushed before, also if the record of it was lost because that push was killed.
        take_new(remote, place, lambda key: key == signer.key)
        secret = secret_of(database)
        with Database.open(database) as opened:
            keep_fresh(opened, selection, _known(remote, Path(temporary)))
            leaving = outgoing(opened, replace(selection, fresh=True), secret, folder, licence)
        if not leaving.measurements:
            write_index(place)
            return None
        files: dict[str, list[Path]] = {table: [] for table in TABLES}
        for segment in leaving.manifest.segments:
            files[segment.table].append(leaving.files[segment.name])
        checked_segments(files, checked, str(database))  # what others would refuse stays here
        if not agree(leaving):
            return None
        write_parts(place, leaving.manifest, leaving.files, place.names("segments/"))
        entry = _publish(remote, place, Entry("", replace(leaving.manifest, owner=signer.key)), signer)
        with Pulled.open(remote) as pulled:
            pulled.add([entry], checked)
        return leaving


def retract(
    remote: Remote,
    condition: str,
    signer: Signer,
    reason: str,
    *,
    agree: Callable[[Sequence[Row]], bool],
) -> int:
    """Take back measurements that this key pushed; returns how many no longer answer.

    Args:
        remote: which they were pushed to.
        condition: which, in SQL about `measurement JOIN problem JOIN config`.
        signer: who pushed them.
        reason: for whoever reads the log.
        agree: is shown the rows before anything is written; False: nothing is.
    """
    place = place_of(remote.url)
    with working_on(remote):
        take_new(remote, place, lambda key: key == signer.key)
        rows = _pushed(remote, condition, signer) if remote.pulled.exists() else []
        if not rows:
            raise UsageError(f"your key has pushed no such measurements to {remote.name}; nothing was retracted")
        if not agree(rows):
            return 0
        retracted = 0
        for start in range(0, len(rows), MOST_ROWS):
            keys = tuple(str(row["measurement_id"]) for row in rows[start : start + MOST_ROWS])
            entry = _publish(remote, place, Entry("", Retraction(keys, now(), MADE_BY, reason, signer.key)), signer)
            with Pulled.open(remote) as pulled:
                retracted += pulled.retract(entry)[0]
        return retracted


def _pushed(remote: Remote, condition: str, signer: Signer) -> list[Row]:
    names = ("measurement_id", "measured_at", "session", "gpu", "kernel", "key", "tunables", "latency_s")
    query = (
        f"SELECT DISTINCT {', '.join(names)} FROM (SELECT * EXCLUDE kernel FROM db.config) JOIN db.measurement "
        "USING (config_id) JOIN db.problem USING (problem_id) "
        f"JOIN (FROM db.origin WHERE signer = {quoted(signer.key)}) USING (measurement_id) "
        f"WHERE {condition} ORDER BY measured_at, measurement_id"
    )
    with Pulled.read(remote) as pulled:
        return [dict(zip(names, row, strict=True)) for row in pulled.database.query(query)]


def _publish(remote: Remote, place: Place, entry: Entry, signer: Signer) -> Entry:
    """Write a document to a remote's log, where it becomes visible."""
    content = entry.document.to_bytes()
    name = f"manifests/{sha256(content).hexdigest()}.json"
    files = signed(name, content, signer)
    write_documents(place, files)
    write_index(place)
    write_documents(Folder(remote.folder), files)
    return replace(entry, name=name)


def _known(remote: Remote, folder: Path) -> dict[str, list[Path]]:
    """What the remote has of rows that were pulled, as `keep_fresh` wants it."""
    if not remote.pulled.exists():
        with Pulled.open(remote):
            pass
    with Pulled.read(remote) as pulled:
        likeness = likeness_hash(pulled.database.columns("measurement"))
        queries = {
            "likeness": f"SELECT {likeness} AS likeness FROM db.measurement",
            "retracted": "SELECT DISTINCT likeness FROM db.retracted WHERE likeness IS NOT NULL",
        }
        return {
            name: [file for file, _ in pulled.database.export(query, folder, 10**9)] for name, query in queries.items()
        }
