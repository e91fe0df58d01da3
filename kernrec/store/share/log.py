"""Logs of databases and remotes: who added or took back what and when, measured on what, and if it answers here."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kernrec import paths
from kernrec.store.database import Database
from kernrec.store.keys import signer_name, trusts
from kernrec.store.remotes import Remote
from kernrec.store.retractions import retraction_log
from kernrec.store.share.entries import entries
from kernrec.store.share.manifest import MOST_TEXTS, Manifest
from kernrec.store.share.pulled import Pulled

UNKNOWN_DAY = "1970-01-01"
"""Of a recording that does not say when it was measured; the days of a push leave it out."""
_OF_PUSH = ("gpus", "ops", "kernels", "days")


def own_log(path: Path) -> Iterator[dict[str, Any]]:
    """A row for each retraction in a database of one's own, as in `remote_log`; none if there is no database."""
    if not path.exists():
        return
    with Database.open(path) as database:
        for row in retraction_log(database):
            moment = row["retracted_at"].isoformat()
            yield _row(paths.OWN, moment, row["signer"], -row["measurements"], "retraction", row["reason"], None)


def remote_log(remote: Remote) -> Iterator[dict[str, Any]]:
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
        common = remote.name, document.created_at, entry.signer
        if not isinstance(document, Manifest):
            yield _row(*common, -len(document.rows), "retraction", document.reason, entry.name)
            continue
        if entry.name in taken:
            state = "answers" if _answers(entry.signer, document, answering) else "retracted"
        else:
            state = "new" if trusts(entry.signer) else "untrusted"
        yield _row(*common, document.rows["measurement"], state, None, entry.name) | {
            **{name: list(document.provenance.get(name, ())) for name in _OF_PUSH},
            "licence": document.licence,
        }


def _row(
    remote: str, moment: str, signer: str, measurements: int, state: str, reason: str | None, manifest: str | None
) -> dict[str, Any]:
    """A row of a log; it says nothing of GPUs, ops, kernels and days."""
    return {
        "remote": remote,
        "pushed_at": f"{moment}Z",
        "signer": signer_name(signer),
        "key": signer or None,
        "measurements": measurements,
        "state": state,
        **{name: [] for name in _OF_PUSH},
        "licence": None,
        "reason": reason,
        "manifest": manifest,
    }


def _answers(signer: str, push: Manifest, answering: Iterable[tuple[Any, ...]]) -> bool:
    """Whether something that a push can have brought answers, as `Pulled.answering` gives it.

    A pulled row does not say which push it came with, but the provenance of a push excludes most others.
    """
    gpus, kernels, days = (push.provenance.get(name, []) for name in ("gpus", "kernels", "days"))
    return any(
        owner == signer
        and gpu in gpus
        and (kernel in kernels or len(kernels) == MOST_TEXTS)
        and (not days or day == UNKNOWN_DAY or days[0] <= day <= days[-1])
        for owner, gpu, kernel, day in answering
    )
