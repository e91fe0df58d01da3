"""`kernrec db push`, `pull`, `withdraw` and `trust`: share measurements with other people."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.cli import options
from kernrec.cli.options import argument, option
from kernrec.cli.output import print_notes, print_table
from kernrec.cli.progress import Steps
from kernrec.errors import UsageError
from kernrec.util.human import counted, human

if TYPE_CHECKING:
    from kernrec.store.share.manifest import Manifest
    from kernrec.store.share.outgoing import Outgoing

Place = Annotated[str, argument("Folder, or URL: s3://, gs:// or https:// (read-only).", "PLACE")]
Licence = Annotated[str | None, option("License of the rows, such as CC0-1.0.")]
DryRun = Annotated[bool, option("Only list the affected rows.", "--dry-run")]
Untrusted = Annotated[bool, option("Also accept bundles without a trusted signature.", "--untrusted")]
Gpu = Annotated[str | None, option("Only measurements of this GPU.", "--gpu")]
Kernel = Annotated[str | None, option("Only measurements of this kernel.")]
_SHOWN = 20


class PushOptions(options.Options):
    databases_used = options.OWN
    place: Place
    gpu: Gpu = None  # type: ignore[assignment]
    licence: Licence = None
    dry_run: DryRun = False


@options.takes(PushOptions)
def push(wanted: PushOptions) -> None:
    """Push measurements from your database to a place, as bundles that are signed with your key.

    Measurements that the place has already are skipped. Your withdrawals are pushed, too. The names of user and
    machine, GPU UUIDs and paths are not pushed. After an interruption, the next push continues.
    """
    from kernrec.gpu import find_gpu
    from kernrec.store.keys import Signer, key_file, make_own_key
    from kernrec.store.share.outgoing import Selection
    from kernrec.store.share.push import push as push_rows
    from kernrec.store.share.servers import place_of

    place, own = place_of(wanted.place), paths.user_database()
    chosen = Selection(wanted.gpu and find_gpu(wanted.gpu).name)
    make_own_key()
    signer = Signer.of(key_file())
    licence = wanted.licence
    if licence is None and not wanted.dry_run:
        licence = _last_licence(signer.key) or asked_licence(f"those who pull from {place.title}")

    def agree(leaving: "Sequence[Outgoing]", withdrawn: int) -> bool:
        for each in leaving:
            print_manifest(each.manifest)
        if withdrawn:
            print(f"pushed earlier, now withdrawn: {counted(withdrawn, 'measurement')}")
        if wanted.dry_run:
            print(f"nothing was pushed to {place.title}")
        return not wanted.dry_run

    pushed = push_rows(place, own, chosen, signer, licence, agree=agree)
    if pushed and pushed[1]:
        print(f"{counted(pushed[1], 'measurement')} withdrawn from {place.title}")
    if pushed and pushed[0]:
        print(f"{counted(pushed[0], 'measurement')} pushed to {place.title}, licence {licence}")
    elif pushed is None and not wanted.dry_run:
        print(f"{place.title} already has all of these measurements")


def _last_licence(key: str) -> str | None:
    from kernrec.store import Database
    from kernrec.store.connection import quoted

    if not paths.pulled().exists():
        return None
    with Database.open(paths.pulled()) as pulled:
        query = f"SELECT arg_max(licence, created_at) FROM db.bundle WHERE measurements > 0 AND signer = {quoted(key)}"
        last: str | None = pulled.query(query)[0][0]
    return last


def asked_licence(others: str) -> str:
    """Ask for the license of shared rows. Raise `UsageError` if stdin is not a terminal."""
    if not sys.stdin.isatty():
        raise UsageError(
            f"--licence is missing: what {others} may do with your rows, such as CC0-1.0 (anything) or"
            ' "internal use at ACME"'
        )
    return str(typer.prompt(f"License of your rows for {others}, such as CC0-1.0 or internal use at ACME", err=True))


def print_manifest(manifest: "Manifest") -> None:
    print(", ".join(counted(count, table) for table, count in manifest.rows.items()))
    for name, values in manifest.provenance.items():
        if name == "days" and values:
            print(f"measured {values[0]}" if values[0] == values[-1] else f"measured {values[0]} to {values[-1]}")
        elif values:
            print(f"{name}: {', '.join(values)}")


class PullOptions(options.Options):
    databases_used = options.OWN
    place: Place
    untrusted: Untrusted = False


@options.takes(PullOptions)
def pull(wanted: PullOptions) -> None:
    """Pull new bundles from a place. Answers then use their measurements, also offline.

    The measurements are checked as in a merge. Only bundles that are signed by a key that you trust are accepted
    (`kernrec db trust`). Pulled measurements are removed only if their signer withdraws them, or if you stop trusting
    the key.
    """
    from kernrec.store.share.pull import pull as pull_rows
    from kernrec.store.share.servers import place_of

    place = place_of(wanted.place)
    with Steps(f"pulling from {place.title}"):
        report = pull_rows(place, untrusted=wanted.untrusted)
    gone = f", {report.withdrawn} no longer used" if report.withdrawn else ""
    print(f"{place.title}: {counted(report.measurements, 'new measurement')}{gone}")
    print_notes(report.left)
    if report.unknown:
        print_notes(["`kernrec db trust KEY` accepts bundles of that key, `--untrusted` accepts all bundles"])
    print_withdrawn_copies(paths.user_database())


def print_withdrawn_copies(database: Path) -> None:
    """Apply pulled withdrawals to a database, and print how many measurements are removed."""
    from kernrec.store.share.withdraw import withdraw_copies

    for name, count in withdraw_copies(database).items():
        print(f"{database}: {name} has withdrawn {counted(count, 'measurement')}, which are no longer used")


class WithdrawOptions(options.Options):
    place: Annotated[str | None, argument("Place to withdraw from now. Default: at the next push.", "PLACE")] = None
    row: Annotated[list[str] | None, option("Measurement or session, as --dry-run lists it.")] = None
    gpu: Gpu = None  # type: ignore[assignment]
    kernel: Kernel = None
    merged: Annotated[bool, option("Only rows that other people measured.", "--merged")] = False
    reason: Annotated[str, option("Reason, for readers of the log.")] = ""
    dry_run: DryRun = False


@options.takes(WithdrawOptions)
def withdraw(wanted: WithdrawOptions) -> None:
    """Withdraw measurements, so that answers no longer use them. They stay in the log of the database.

    Withdrawn measurements are left out of bundles and pushes. If you pushed them before, the next push withdraws them
    at the place, too. With PLACE, they are withdrawn there at once. This applies only to measurements that you pushed,
    and to all copies that others pulled or merged.
    """
    from kernrec.gpu import find_gpu
    from kernrec.store.connection import quoted
    from kernrec.store.keys import Signer, key_file
    from kernrec.store.rows import Row
    from kernrec.store.share.manifest import TEXT
    from kernrec.store.share.outgoing import Selection
    from kernrec.store.share.servers import place_of
    from kernrec.store.share.withdraw import withdraw_here, withdraw_there

    if not (wanted.row or wanted.gpu or wanted.kernel or wanted.merged):
        raise UsageError("name the measurements: --row, --gpu, --kernel or --merged")
    if wanted.merged and wanted.place:
        raise UsageError(f"--merged is for a database; at {wanted.place}, you can only withdraw what you pushed")
    if not TEXT.fullmatch(wanted.reason):
        raise UsageError("--reason: expected one line of at most 200 characters")
    own = wanted.database
    condition = Selection(wanted.gpu and find_gpu(wanted.gpu).name, None, wanted.kernel).condition()
    if wanted.row:
        named = f"({', '.join(map(quoted, wanted.row))})"
        condition += f" AND (measurement_id IN {named} OR session IN {named})"
    if wanted.merged:
        condition += " AND measurement_id IN (SELECT measurement_id FROM db.merged)"
    place = place_of(wanted.place) if wanted.place else None
    title = place.title if place else str(own)

    def agree(rows: Sequence[Row]) -> bool:
        names = ("measurement_id", "session", "gpu", "kernel", "latency_s", "tunables")
        shown = [[_cell(each[name]) for name in names] for each in rows[:_SHOWN]]
        print_table(None, ("row", "session", "gpu", "kernel", "latency", "config"), shown)
        if len(rows) > _SHOWN:
            print(f"and {len(rows) - _SHOWN} more")
        if wanted.dry_run:
            print(f"nothing was withdrawn from {title}")
        return not wanted.dry_run

    if place:
        beside = own if wanted.db or own.exists() else None
        count = withdraw_there(place, condition, Signer.of(key_file()), wanted.reason, agree=agree, own=beside)
    else:
        count = withdraw_here(own, condition, wanted.reason, agree=agree)
        if not (count or wanted.dry_run):
            raise UsageError(f"{own} has no matching measurements; nothing was withdrawn")
    if count:
        print(f"{counted(count, 'measurement')} withdrawn from {title}")


def _cell(value: object) -> str:
    return human(value, "s") if isinstance(value, float) else str(value or "")


class TrustOptions(options.Options):
    databases_used = options.OWN
    key: Annotated[str | None, argument("Public key to trust. Default: list the trusted keys.")] = None
    name: Annotated[str | None, argument("Name of the key's owner, shown in answers.")] = None
    remove: Annotated[bool, option("Stop trusting this key or name.", "--remove")] = False
    own: Annotated[bool, option("Print your public key; create it if there is none.", "--own")] = False


@options.takes(TrustOptions)
def trust(wanted: TrustOptions) -> None:
    """Trust the measurements that a key signs, or list the keys that you trust.

    Measurements without a signature or with an unknown key are refused. If you remove a key, the measurements that it
    signed are no longer used. Give your own public key (--own) to your team. Your private key stays in a file that only
    you can read.
    """
    from kernrec.store import keys

    if wanted.own:
        if wanted.key or wanted.name or wanted.remove:
            raise UsageError("--own prints your own key; give no other option with it")
        print(keys.make_own_key())
    elif wanted.key is None:
        if wanted.name or wanted.remove:
            raise UsageError("name the key: `kernrec db trust KEY NAME`")
        own = keys.own_key()
        rows = ([["you", own]] if own else []) + [[title, each] for each, title in keys.trusted().items()]
        if rows:
            print_table(None, ("signer", "key"), rows)
        else:
            print_notes(["no key is trusted"])
    elif wanted.remove:
        _remove(wanted.key)
    else:
        keys.trust(wanted.key, wanted.name)
        print(f"{wanted.key}: trusted as {keys.signer_name(wanted.key)}; `kernrec db pull` accepts its bundles")


def _remove(key: str) -> None:
    from kernrec.store import Database, keys
    from kernrec.store.share.pulled import drop_signer
    from kernrec.store.share.withdraw import forget

    if keys.is_public_key(key) and key not in keys.trusted() and (dropped := drop_signer(paths.pulled(), key)):
        print(f"{counted(dropped, 'measurement')} no longer used")
        return
    gone = keys.distrust(key)
    print(f"{gone}: no longer trusted")
    if dropped := drop_signer(paths.pulled(), gone):
        print(f"{counted(dropped, 'measurement')} no longer used")
    if (own := paths.user_database()).exists():
        with Database.open(own, read_only=False) as database:
            if again := forget(database, gone):
                print(
                    f"{own}: {gone}'s withdrawals no longer apply; {counted(again, 'measurement')}"
                    f" {'is' if again == 1 else 'are'} used again"
                )
