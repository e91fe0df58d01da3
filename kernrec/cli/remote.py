"""`kernrec db remote`, `push`, `pull`, `sync` and `log`: databases that a team shares."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.cli.commands import Commands
from kernrec.cli.format import print_notes
from kernrec.cli.steps import Steps
from kernrec.cli.table import print_table
from kernrec.errors import KernrecError, UsageError
from kernrec.util.human import counted

if TYPE_CHECKING:
    from kernrec.store.remotes import Remote

app = Commands(help="Name the databases that your team shares.", no_args_is_help=True)

Name = Annotated[str | None, typer.Argument(help="Remote (`kernrec db remote list`). Default: the only one.")]
_NO_REMOTES = "there are no remotes; `kernrec db remote add NAME URL` adds one"
AnyName = Annotated[str | None, typer.Argument(help="Remote. Default: all of them.")]
Licence = Annotated[
    str | None, typer.Option(help="Of the rows, such as CC0-1.0. Default: that of your last push to the remote.")
]
Untrusted = Annotated[
    bool, typer.Option("--untrusted", help="Take unsigned rows, and those of unknown keys, too (`kernrec db trust`).")
]


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Name of your choice; answers name it.")],
    url: Annotated[str, typer.Argument(help="s3://, gs://, hf:// or https:// (which is only read), or a folder.")],
) -> None:
    """Add a remote as the last one; rows of earlier remotes answer first, yours before all of them.

    Credentials are taken from where the store's own tools take them; none are kept.
    """
    from kernrec.store.remotes import Remote, add_remote
    from kernrec.store.share.object_store import checked_url

    remote = Remote(name, checked_url(url))
    add_remote(remote)
    print(f"{remote.name}: {remote.url}")
    if "://" not in remote.url and not Path(remote.url).is_dir():
        print_notes([f"there is no folder {remote.url} yet; make it before you push or pull"])


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the remotes in the order in which they answer, and how many rows were pulled."""
    from kernrec.store.remotes import remotes
    from kernrec.store.share.pulled import Pulled

    rows = []
    for remote in remotes():
        count = 0
        if remote.pulled.exists():
            with Pulled.read(remote) as pulled:
                count = pulled.measurements()
        rows.append({"remote": remote.name, "measurements": count, "url": remote.url})
    if as_json:
        print(json.dumps(rows, indent=2))
    elif rows:
        columns = [("remote", "left"), ("measurements", "right"), ("url", "left")]
        print_table(None, columns, [[str(value) for value in row.values()] for row in rows])
    else:
        print_notes([_NO_REMOTES])


@app.command("remove")
def remove(name: Annotated[str, typer.Argument(help="Remote (`kernrec db remote list`).")]) -> None:
    """Remove a remote: its rows no longer answer, and the copy here is deleted; the remote itself stays."""
    from kernrec.store.remotes import remove_remote

    print(f"{remove_remote(name).name}: removed")


def push(
    name: Name = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="GPU that was measured (`kernrec gpus`).")] = None,
    op: Annotated[str | None, typer.Option("--op", help="Operator that was measured (`kernrec ops`).")] = None,
    kernel: Annotated[str | None, typer.Option(help="Kernel that was measured.")] = None,
    since: Annotated[str | None, typer.Option(help="Measured since this day, such as 2026-03-01.")] = None,
    licence: Licence = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would leave.")] = False,
    db: Annotated[Path | None, typer.Option("--db", help="Database. Default: your own.")] = None,
) -> None:
    """Add the measurements of a database that a remote lacks to it, signed with your key.

    Names of user and machine, GPU UUIDs and paths stay here. An interrupted push is seen by nobody; the next goes on.
    """
    from kernrec.cli.bundle import print_leaving, selection
    from kernrec.store.keys import Signer, key_file
    from kernrec.store.share.outgoing import Outgoing
    from kernrec.store.share.push import push as push_rows

    remote, own = _writable(name), db or paths.user_database()
    chosen, signer = selection(own, gpu, op, kernel, since), Signer.of(key_file())
    if licence is None and not dry_run:
        licence = _licence(remote, signer.key)

    def agree(leaving: Outgoing) -> bool:
        print_leaving(leaving)
        if dry_run:
            print(f"nothing was pushed to {remote.name} ({remote.url})")
        return not dry_run

    left = push_rows(remote, own, chosen, signer, licence, agree=agree)
    if left is not None and left.retracted:
        print(f"{counted(left.retracted, 'measurement')} retracted from {remote.name}")
    if left is not None and left.measurements:
        pushed = counted(left.measurements, "measurement")
        print(f"{pushed} pushed to {remote.name}, licence {left.manifest.licence}")
    elif left is None and not dry_run:
        print(f"{remote.name} lacks none of these measurements")


def _licence(remote: "Remote", key: str) -> str:
    """Return the license of the last push with a key to a remote; if there is none, ask for it."""
    from kernrec.store.share.entries import entries
    from kernrec.store.share.manifest import Manifest

    pushed = [e.document for e in entries(remote) if e.signer == key and isinstance(e.document, Manifest)]
    if pushed:
        return max(pushed, key=lambda manifest: manifest.created_at).licence
    return asked_licence(f"those who pull from {remote.name}")


def asked_licence(others: str) -> str:
    """Ask which license the user's rows have for others; `UsageError` if nobody can answer."""
    if not sys.stdin.isatty():
        raise UsageError(
            f"--licence is missing: what {others} may do with your rows, such as CC0-1.0 (anything) or"
            ' "internal use at ACME"'
        )
    return str(typer.prompt(f"License of your rows for {others}, such as CC0-1.0 or internal use at ACME", err=True))


def pull(name: AnyName = None, untrusted: Untrusted = False) -> None:
    """Take what is new at remotes; rows are checked as in a merge, and answer from then on, without the network."""
    from kernrec.store.remotes import remote_named, remotes
    from kernrec.store.share.pull import pull as pull_rows

    every = [remote_named(name)] if name else remotes()
    if not every:
        raise UsageError(_NO_REMOTES)
    failed: list[KernrecError] = []
    for remote in every:
        try:
            with Steps(f"pulling from {remote.name}"):
                report = pull_rows(remote, untrusted=untrusted)
        except KernrecError as error:  # the others are pulled all the same
            failed.append(error)
            continue
        retracted = f", {report.retracted} retracted" if report.retracted else ""
        gone = f", {report.gone} no longer answer" if report.gone else ""
        print(f"{remote.name}: {counted(report.measurements, 'new measurement')}{retracted}{gone}")
        notes = [f"{remote.name}: {line}" for line in report.left]
        if any("unknown key" in line or "not signed" in line for line in report.left):
            how = "`kernrec db trust KEY` takes what a key signs, `--untrusted` takes everything"
            notes.append(f"{remote.name}: {how}")
        print_notes(notes)
    print_retracted_copies(paths.user_database())
    print_notes(map(str, failed[:-1]))
    if failed:
        raise failed[-1]


def print_retracted_copies(database: Path) -> None:
    """Say which measurements of a database no longer answer because who shared them has taken them back at a remote.

    Rows that were pulled from other remotes are looked through, too.
    """
    from kernrec.store.share.retract import retract_at_others, retract_copies

    for name, count in retract_at_others().items():
        print(f"{name}: {counted(count, 'measurement')} taken back at another remote, answering no more")
    for name, count in retract_copies(database).items():
        print(f"{database}: {name} has taken back {counted(count, 'measurement')}, answering no more")


def sync(name: Name = None, untrusted: Untrusted = False, licence: Licence = None) -> None:
    """Pull from a remote, then push to it."""
    from kernrec.store.keys import Signer, key_file

    remote = _writable(name)
    signer = Signer.of(key_file())  # what a push needs is missed before anything is pulled
    licence = licence or _licence(remote, signer.key)
    pull(remote.name, untrusted)
    push(remote.name, licence=licence)


def log(name: AnyName = None, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show who added what to remotes and when, measured on what, as it was when they were last pulled or pushed to.

    Retracted rows stay in the log; what was taken back in your own database comes first.
    """
    from kernrec.store.remotes import remote_named, remotes
    from kernrec.store.share.log import own_log, remote_log

    logs = {remote.name: list(remote_log(remote)) for remote in ([remote_named(name)] if name else remotes())}
    if name is None and (own := list(own_log(paths.user_database()))):
        logs = {paths.OWN: own} | logs
    if as_json:
        print(json.dumps([row for rows in logs.values() for row in rows], indent=2))
        return
    for title, rows in logs.items():
        cells = [
            {
                "when": row["pushed_at"][:16].replace("T", " "),
                **{name: str(row[name]) for name in ("signer", "measurements", "state")},
                **{name: " ".join(row[name]) for name in ("gpus", "ops")},
                "reason": row["reason"] or "",
            }
            for row in rows
        ]
        if cells:
            # A column without any value, such as the reason where nothing was taken back, is left out.
            filled = [name for name in cells[0] if any(cell[name] for cell in cells)]
            columns = [(name, "right" if name == "measurements" else "left") for name in filled]
            print_table(title, columns, [[cell[name] for name in filled] for cell in cells])
        else:
            print_notes([f"{title}: nothing was pulled yet, or nothing is there"])
    if not logs:
        print_notes([_NO_REMOTES])


def only(name: str | None) -> "Remote":
    """The remote of this name; without one, the only remote."""
    from kernrec.store.remotes import remote_named, remotes

    if name is not None:
        return remote_named(name)
    every = remotes()
    if len(every) != 1:
        names = ", ".join(remote.name for remote in every)
        hint = f"name one of {names}" if every else "`kernrec db remote add` adds one"
        raise UsageError(f"there are {len(every) or 'no'} remotes; {hint}")
    return every[0]


def _writable(name: str | None) -> "Remote":
    from kernrec.store.share.object_store import can_push

    remote = only(name)
    if not can_push(remote.url):
        raise UsageError(
            f"{remote.name} can only be read ({remote.url}), as `kernrec db pull` does; to push, add it by where its "
            "files are"
        )
    return remote
