"""Pushing: what a remote lacks of a database leaves, signed, as one manifest and its segments.

Nothing at the remote is changed, so several may push at once. Segments are named by their content and written before
the manifest that names them: a push that is killed leaves nothing that a reader sees, and the next one goes on.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.store.database import Database
from kernrec.store.keys import Signer
from kernrec.store.reader import check_own_segments
from kernrec.store.remotes import Remote
from kernrec.store.share.bundle import write_parts
from kernrec.store.share.entries import publish, remote_identity, write_index
from kernrec.store.share.index import index_names
from kernrec.store.share.manifest import TABLES
from kernrec.store.share.object_store import place_of
from kernrec.store.share.outgoing import Outgoing, Selection, keep_fresh, likeness_hash, outgoing
from kernrec.store.share.privacy import secret_of
from kernrec.store.share.pull import take_new
from kernrec.store.share.pulled import Pulled, working_on
from kernrec.store.share.retract import publish_retraction, retracted_here
from kernrec.util.scratch import scratch_folder


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
        remote: whose rows that were pulled, or pushed, here are there already.
        database: to read.
        selection: of its measurements. Those that were taken back in it are taken back at the remote, too.
        signer: whose rows they become.
        licence: of the rows; None: the usual one.
        agree: is shown what would leave before anything does; False: nothing leaves.

    Returns:
        The rows that left; None: there was nothing new, or it was not agreed to.

    Raises:
        KernrecError: if the remote cannot be reached or written, or would not take the rows.
    """
    place = place_of(remote.url)
    if index_names(place):
        raise UsageError(
            f"{remote.name} is an index of bundles, to which nothing is pushed; `kernrec contribute` writes one"
        )
    with working_on(remote), scratch_folder() as temporary:
        folder, checked = temporary / "segments", temporary / "checked"
        folder.mkdir()
        checked.mkdir()
        # What this key pushed before, also if the record of it was lost because that push was killed.
        take_new(remote, place, lambda key: key == signer.key)
        secret = secret_of(database)
        with Database.open(database) as opened:
            keep_fresh(opened, selection, _stale(remote, temporary))
            leaving = outgoing(opened, replace(selection, fresh=True, retractions=False), secret, folder, licence)
            gone = retracted_here(remote, opened, signer)
            leaving = replace(leaving, retracted=sum(map(len, gone.values())))
        if not (leaving.measurements or gone):
            write_index(place)
            return None
        if leaving.measurements:
            files: dict[str, list[Path]] = {table: [] for table in TABLES}
            for segment in leaving.manifest.segments:
                files[segment.table].append(leaving.files[segment.name])
            check_own_segments(files, str(database))  # what others would refuse stays here
        if not agree(leaving):
            return None
        for reason, keys in gone.items():
            publish_retraction(remote, place, keys, signer, reason)
        if not leaving.measurements:
            return leaving
        write_parts(place, leaving.manifest, leaving.files, place.names("segments/"))
        identity = remote_identity(remote, place, make=True)
        entry = publish(remote, place, replace(leaving.manifest, owner=signer.key, remote=identity), signer)
        for segment in leaving.manifest.segments:
            leaving.files[segment.name].rename(checked / f"{segment.table}.{segment.sha256}.parquet")
        with Pulled.open(remote) as pulled:
            pulled.add([entry], checked)
            pulled.settle()
        return leaving


def _stale(remote: Remote, folder: Path) -> dict[str, list[Path]]:
    """The rows that the remote has or that were taken back there, as `keep_fresh` takes them."""
    if not remote.pulled.exists():
        with Pulled.open(remote):
            pass
    with Pulled.read(remote) as pulled:
        likeness = likeness_hash(pulled.database.columns("measurement"))
        queries = {
            "likeness": f"SELECT {likeness} AS likeness FROM db.measurement",
            "retracted": "SELECT DISTINCT likeness FROM db.retracted WHERE likeness IS NOT NULL",
        }
        return {name: [file for file, _ in pulled.database.export(query, folder)] for name, query in queries.items()}
