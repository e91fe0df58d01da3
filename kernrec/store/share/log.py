"""What a remote's log says: who added what and when, measured on what, and whether it answers here."""

from collections.abc import Iterator
from typing import Any

from kernrec.store.remotes import Remote
from kernrec.store.share.entries import entries
from kernrec.store.share.manifest import Manifest
from kernrec.store.share.pulled import Pulled
from kernrec.store.trust import signer_name, trusts


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
            about |= {"measurements": -len(document.rows), "state": "retraction", "reason": document.reason}
            about |= {"gpus": [], "ops": [], "kernels": [], "days": [], "licence": None}
        yield about | {"manifest": entry.name}
