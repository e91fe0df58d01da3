"""What logs say: who added what to a remote and when, measured on what, if it answers here, and what was taken back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernrec.store.database import Database
from kernrec.store.remotes import OWN, Remote
from kernrec.store.retractions import log as retractions
from kernrec.store.share.entries import entries
from kernrec.store.share.manifest import Manifest
from kernrec.store.share.pulled import Pulled
from kernrec.store.trust import signer_name, trusts

_OF_RETRACTION: dict[str, Any] = {
    "state": "retraction",
    "gpus": [],
    "ops": [],
    "kernels": [],
    "days": [],
    "licence": None,
}


def own_log(path: Path) -> Iterator[dict[str, Any]]:
    """A row for each retraction in a database of one's own, as `log` gives them; none if there is no database."""
    if not path.exists():
        return
    with Database.open(path) as database:
        for row in retractions(database):
            yield {
                "remote": OWN,
                "pushed_at": f"{row['retracted_at'].isoformat()}Z",
                "signer": signer_name(row["signer"]),
                "key": row["signer"] or None,
                "measurements": -row["measurements"],
                "reason": row["reason"],
                **_OF_RETRACTION,
                "manifest": None,
            }


def log(remote: Remote) -> Iterator[dict[str, Any]]:
    """A row for each push and retraction, oldest first, as it was when the remote was last asked.

    `state` is `answers` for what was pulled, `untrusted` for what was not because of its signer, `new` for what the
    next pull takes, and `retraction`.
    """
    taken: set[str] = set()
    if remote.pulled.exists():
        with Pulled.read(remote) as pulled:
            taken = pulled.taken()
    for entry in entries(remote):
        document = entry.document
        about: dict[str, Any] = {
            "remote": remote.name,
            "pushed_at": f"{document.created_at}Z",
            "signer": signer_name(entry.signer),
            "key": entry.signer or None,
        }
        if isinstance(document, Manifest):
            state = "answers" if entry.name in taken else "new" if trusts(entry.signer) else "untrusted"
            about |= {"measurements": document.rows["measurement"], "state": state}
            about |= {name: list(document.provenance.get(name, ())) for name in ("gpus", "ops", "kernels", "days")}
            about |= {"licence": document.licence, "reason": None}
        else:
            about |= {"measurements": -len(document.rows), "reason": document.reason, **_OF_RETRACTION}
        yield about | {"manifest": entry.name}
