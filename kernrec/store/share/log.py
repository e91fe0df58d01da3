"""What logs say: who added what to a remote and when, measured on what, if it answers here, and what was taken back."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kernrec.store.database import Database
from kernrec.store.remotes import OWN, Remote
from kernrec.store.retractions import log as retractions
from kernrec.store.share.entries import entries
from kernrec.store.share.manifest import MOST_TEXTS, Manifest
from kernrec.store.share.pulled import Pulled
from kernrec.store.trust import signer_name, trusts

UNKNOWN_DAY = "1970-01-01"
"""Of a recording that does not say when it was measured; the days of a push leave it out."""
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

    `state` is `answers` for what was pulled, `retracted` where none of it answers any more, `untrusted` for what was
    not pulled because of its signer, `new` for what the next pull takes, and `retraction`.
    """
    taken: set[str] = set()
    answering: list[tuple[Any, ...]] = []
    if remote.pulled.exists():
        with Pulled.read(remote) as pulled:
            taken, answering = pulled.taken(), pulled.answering()
    for entry in entries(remote):
        document = entry.document
        about: dict[str, Any] = {
            "remote": remote.name,
            "pushed_at": f"{document.created_at}Z",
            "signer": signer_name(entry.signer),
            "key": entry.signer or None,
        }
        if isinstance(document, Manifest):
            if entry.name in taken:
                state = "answers" if _answers(entry.signer, document, answering) else "retracted"
            else:
                state = "new" if trusts(entry.signer) else "untrusted"
            about |= {"measurements": document.rows["measurement"], "state": state}
            about |= {name: list(document.provenance.get(name, ())) for name in ("gpus", "ops", "kernels", "days")}
            about |= {"licence": document.licence, "reason": None}
        else:
            about |= {"measurements": -len(document.rows), "reason": document.reason, **_OF_RETRACTION}
        yield about | {"manifest": entry.name}


def _answers(signer: str, push: Manifest, answering: Iterable[tuple[Any, ...]]) -> bool:
    """Whether something that a push can have brought answers, as `Pulled.answering` gives it.

    A pulled row does not say which push it came with, but what a push says of its rows excludes most others.
    """
    gpus, kernels, days = (push.provenance.get(name, []) for name in ("gpus", "kernels", "days"))
    return any(
        owner == signer
        and gpu in gpus
        and (kernel in kernels or len(kernels) == MOST_TEXTS)
        and (not days or day == UNKNOWN_DAY or days[0] <= day <= days[-1])
        for owner, gpu, kernel, day in answering
    )
