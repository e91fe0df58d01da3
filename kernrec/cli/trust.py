"""`kernrec db key`, `sign`, `trust` and `retract`: whose rows they are, and whose are taken."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kernrec import paths
from kernrec.cli.format import print_notes
from kernrec.cli.table import print_table
from kernrec.errors import UsageError
from kernrec.util.human import counted, human

_SHOWN = 20
"""Rows that are listed before they are retracted."""


def key() -> None:
    """Print your public key; the private one is made where you have none yet, in a file that only you can read.

    Give the public key to your team, who trust it with `kernrec db trust KEY --name YOU`.
    """
    from kernrec.store.keys import make_own_key

    print(make_own_key())


def sign(
    bundle: Annotated[Path, typer.Argument(help="Folder or .zip file of a bundle that nobody signed yet.")],
) -> None:
    """Sign a bundle with your key."""
    from kernrec.store.keys import Signer, key_file
    from kernrec.store.share import place_at
    from kernrec.store.share.bundle import sign_bundle

    signer = Signer.of(key_file())
    sign_bundle(place_at(bundle), signer)
    print(f"{bundle}: signed by {signer.key}")


def trust(
    key: Annotated[str | None, typer.Argument(help="Public key. Default: list the trusted keys.")] = None,
    name: Annotated[str | None, typer.Option(help="By which answers call its owner.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Trust this key, or name, no longer.")] = False,
) -> None:
    """Trust the rows that a key signs, or list the keys that you trust.

    Rows without a signature or of unknown keys are refused. Rows pulled before their key is removed no longer answer.
    """
    from kernrec.store import Database, keys
    from kernrec.store.remotes import remotes
    from kernrec.store.retractions import forget
    from kernrec.store.share.pulled import drop_signer

    if key is None:
        if name or remove:
            raise UsageError("name the key: `kernrec db trust KEY`")
        own = keys.own_key()
        rows = ([["you", own]] if own else []) + [[title, each] for each, title in keys.trusted().items()]
        if rows:
            print_table(None, [("signer", "left"), ("key", "left")], rows)
        else:
            print_notes(["no key is trusted"])
        return
    if remove:
        gone = keys.distrust(key)
        print(f"{gone}: not trusted any more")
        for remote in remotes():
            if dropped := drop_signer(remote, gone):
                print(f"{remote.name}: {counted(dropped, 'measurement')} removed from what answers")
        if (own_rows := paths.user_database()).exists():
            with Database.open(own_rows, read_only=False) as database:
                if again := forget(database, gone):
                    print(f"{own_rows}: answering again, as before it took them back: {counted(again, 'measurement')}")
        return
    keys.trust(key, name)
    print(f"{key}: trusted as {keys.signer_name(key)}; `kernrec db pull` takes what it signed")


def retract(
    name: Annotated[
        str | None, typer.Argument(help="Remote that is told at once. Default: none; the next push tells it.")
    ] = None,
    row: Annotated[list[str] | None, typer.Option(help="Key of a measurement, as --dry-run lists it.")] = None,
    session: Annotated[str | None, typer.Option(help="Session that was measured in.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="GPU that was measured (`kernrec gpus`).")] = None,
    op: Annotated[str | None, typer.Option("--op", help="Operator that was measured (`kernrec ops`).")] = None,
    kernel: Annotated[str | None, typer.Option(help="Kernel that was measured.")] = None,
    since: Annotated[str | None, typer.Option(help="Measured since this day, such as 2026-03-01.")] = None,
    merged: Annotated[bool, typer.Option("--merged", help="Only what came from others' files and bundles.")] = False,
    reason: Annotated[str, typer.Option(help="For whoever reads the log.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be retracted.")] = False,
    db: Annotated[Path | None, typer.Option("--db", help="Database. Default: your own.")] = None,
) -> None:
    """Take back measurements of a database: they no longer answer, and stay in the log.

    At a remote it holds for what your own key pushed; what others shared stays. Merging, bundles and pushes carry it.
    """
    from kernrec.cli.bundle import selection
    from kernrec.cli.remote import only
    from kernrec.store.connection import quoted
    from kernrec.store.keys import Signer, key_file
    from kernrec.store.rows import Row
    from kernrec.store.share.manifest import TEXT
    from kernrec.store.share.retract import retract_here, retract_there

    if not (row or session or gpu or op or kernel or since or merged):
        raise UsageError("say which measurements: --row, --session, --gpu, --op, --kernel, --since or --merged")
    if merged and name:
        raise UsageError(f"--merged is about a database; at {name} your key takes back only what it pushed")
    if not TEXT.fullmatch(reason):
        raise UsageError("--reason: one line of at most 200 characters is expected")
    own = db or paths.user_database()
    condition = selection(own, gpu, op, kernel, since).condition()
    if session:
        condition += f" AND session = {quoted(session)}"
    if row:
        condition += f" AND measurement_id IN ({', '.join(map(quoted, row))})"
    if merged:
        condition += " AND measurement_id IN (SELECT measurement_id FROM db.merged)"
    remote = only(name) if name else None
    title = remote.name if remote else str(own)

    def agree(rows: Sequence[Row]) -> bool:
        columns = [("row", "left"), ("session", "left"), ("gpu", "left"), ("kernel", "left")]
        names = ("measurement_id", "session", "gpu", "kernel", "latency_s", "tunables")
        shown = [[_cell(each[name]) for name in names] for each in rows[:_SHOWN]]
        print_table(None, [*columns, ("latency", "right"), ("config", "left")], shown)
        if len(rows) > _SHOWN:
            print(f"and {len(rows) - _SHOWN} more")
        if dry_run:
            print(f"nothing was retracted from {title}")
        return not dry_run

    if remote:
        beside = own if db or own.exists() else None
        count = retract_there(remote, condition, Signer.of(key_file()), reason, agree=agree, own=beside)
    else:
        signer = Signer.of(key_file()) if key_file().exists() else None
        count = retract_here(own, condition, signer, reason, agree=agree)
        if not (count or dry_run):
            raise UsageError(f"{own} has no such measurements; nothing was retracted")
    if count:
        print(f"{counted(count, 'measurement')} retracted from {title}")


def _cell(value: object) -> str:
    return human(value, "s") if isinstance(value, float) else str(value or "")
