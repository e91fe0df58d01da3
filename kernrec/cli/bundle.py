"""The part of `kernrec db export` and `kernrec db import` that is about bundles."""

from datetime import UTC, datetime
from pathlib import Path

from kernrec.cli.format import print_notes
from kernrec.cli.steps import Steps
from kernrec.errors import KernrecError, UsageError
from kernrec.store import Database
from kernrec.store.keys import signer_name, trusts
from kernrec.store.share import Manifest, Selection, place_at, read_bundle, write_bundle
from kernrec.store.share.bundle import import_to
from kernrec.store.share.outgoing import Outgoing, outgoing
from kernrec.store.share.place import MANIFEST
from kernrec.store.share.privacy import secret_of
from kernrec.util.human import counted
from kernrec.util.input_file import open_input
from kernrec.util.scratch import scratch_folder


def selection(database: Path, gpu: str | None, op: str | None, kernel: str | None, since: str | None) -> Selection:
    """The measurements of a database that options name."""
    from kernrec.gpu import find_gpu

    moment = None
    if since is not None:
        try:
            moment = datetime.fromisoformat(since)
        except ValueError:
            raise UsageError(f"--since {since!r:.40}: a day such as 2026-03-01 is expected") from None
        moment = moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    return Selection(find_gpu(gpu).name if gpu else None, op_name(database, op) if op else None, kernel, moment)


def op_name(database: Path, op: str) -> str:
    """The name of an op: one of the catalog, or one that the spec of a user's kernel declares."""
    from kernrec.op import find_op

    try:
        return find_op(op).name
    except UsageError:
        if database.exists():
            with Database.open(database) as opened:
                if opened.rows("problem", op=op):
                    return op
        raise


def export(
    path: Path,
    database: Path,
    selected: Selection,
    *,
    models: bool,
    licence: str | None,
    key: Path | None,
    dry_run: bool,
) -> None:
    """Write a bundle of a database, or list its contents.

    key: file of the private key that signs it; None: it stays unsigned.
    """
    from kernrec.recommender.estimate.shared_models import models_in
    from kernrec.store.keys import Signer

    place = place_at(path)
    if path.exists() and (not path.is_dir() or MANIFEST in place.names()):
        raise UsageError(f"{path} exists already; name a new file or folder")
    signer = Signer.of(key) if key else None
    files = models_in(database.parent / "models") if models else {}
    with Database.open(database) as opened, scratch_folder() as folder:
        secret = "dry run" if dry_run else secret_of(database)
        leaving = outgoing(opened, selected, secret, folder, licence, files)
        if not leaving.measurements:
            raise KernrecError(f"{database} has no such measurements")
        print_leaving(leaving)
        if dry_run:
            print(f"nothing was written to {path}")
            return
        write_bundle(place, leaving.manifest, leaving.files, signer)
    print(f"written to {path}, licence {leaving.manifest.licence}{'' if signer else ', not signed'}")


def print_leaving(leaving: Outgoing) -> None:
    """List the rows that would leave, and the columns in another form."""
    _list(leaving.manifest)
    if leaving.retracted:
        print(f"left earlier, now retracted: {counted(leaving.retracted, 'measurement')}")
    for name, count in leaving.changed.items():
        print(f"{name} leaves in another form in {counted(count, 'measurement')}")


def import_(path: Path, database: Path, models: bool, untrusted: bool) -> None:
    """Add the rows of a bundle to a database.

    untrusted: also if it is not signed, or by an unknown key.
    """
    from kernrec.recommender.estimate.shared_models import take_models

    bundle = read_bundle(place_at(path))
    _list(bundle.manifest)
    if not untrusted and not trusts(bundle.signer):
        how = f"signed by an unknown key, {bundle.signer}" if bundle.signer else "not signed"
        trust = "`kernrec db trust KEY` trusts it, " if bundle.signer else ""
        raise UsageError(f"{path} is {how}; nothing was taken ({trust}--untrusted takes it all the same)")
    notes: list[str] = []
    with Steps(f"checking and adding {path}"):
        added = import_to(database, bundle, notes.append)
    signed = f"signed by {signer_name(bundle.signer)}" if bundle.signer else "not signed"
    print(f"{counted(added, 'new row')}, licence {bundle.manifest.licence}, {signed}")
    print_notes(notes)
    if bundle.manifest.models and models:
        taken, own = take_models(bundle, database.parent / "models")
        print(f"{counted(len(taken), 'file')} of models taken")
        if own:
            print_notes([f"kept as they are: {counted(len(own), 'file')} of models of your own"])
    elif bundle.manifest.models:
        print_notes([f"left: {counted(len(bundle.manifest.models), 'file')} of models, which --models takes"])


def is_bundle(path: Path) -> bool:
    """Whether a path looks like a bundle: a zip file, or a folder with a manifest."""
    if path.is_dir():
        return (path / MANIFEST).is_file()
    try:
        with open_input(path) as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def _list(manifest: Manifest) -> None:
    print(", ".join(counted(count, table) for table, count in manifest.rows.items()))
    for name, values in manifest.provenance.items():
        if name == "days" and values:
            print(f"measured {values[0]}" if values[0] == values[-1] else f"measured {values[0]} to {values[-1]}")
        elif values:
            print(f"{name}: {', '.join(values)}")
    if manifest.models:
        print(f"models: {', '.join(model.file for model in manifest.models)}")
