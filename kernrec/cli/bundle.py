"""Export and import bundles for `kernrec db export` and `kernrec db import`."""

from pathlib import Path

from kernrec.cli.format import print_notes
from kernrec.cli.share import print_leaving, print_manifest
from kernrec.cli.steps import Steps
from kernrec.errors import KernrecError, UsageError
from kernrec.store import Database
from kernrec.store.keys import signer_name, trusts
from kernrec.store.share import Selection, place_at, read_bundle, write_bundle
from kernrec.store.share.bundle import import_to
from kernrec.store.share.outgoing import outgoing, secret_of
from kernrec.store.share.place import MANIFEST
from kernrec.util.files import open_input, scratch_folder
from kernrec.util.human import counted


def export(path: Path, database: Path, selected: Selection, licence: str) -> None:
    """Write a bundle of a database, signed with the user's key, which is created if missing."""
    from kernrec.store.keys import Signer, key_file, make_own_key

    place = place_at(path)
    if path.exists() and (not path.is_dir() or MANIFEST in place.names()):
        raise UsageError(f"{path} exists already; name a new file or folder")
    with Database.open(database) as opened, scratch_folder() as folder:
        make_own_key()
        leaving = outgoing(opened, selected, secret_of(database), folder, licence)
        if not leaving.measurements:
            raise KernrecError(f"{database} has no matching measurements")
        print_leaving(leaving)
        write_bundle(place, leaving.manifest, leaving.files, Signer.of(key_file()))
    print(f"written to {path}, licence {leaving.manifest.licence}")


def import_(path: Path, database: Path, untrusted: bool) -> None:
    """Add the rows of a bundle to a database.

    Args:
        untrusted: Whether to accept bundles signed by an unknown key.
    """
    bundle = read_bundle(place_at(path))
    print_manifest(bundle.manifest)
    if not untrusted and not trusts(bundle.signer):
        raise UsageError(
            f"{path} is signed by an unknown key, {bundle.signer}; nothing was imported (`kernrec db trust KEY` "
            f"trusts the key; --untrusted imports the bundle anyway)"
        )
    with Steps(f"checking and adding {path}"):
        added = import_to(database, bundle)
    print(f"{counted(added, 'new row')}, licence {bundle.manifest.licence}, signed by {signer_name(bundle.signer)}")
    if bundle.manifest.models:
        print_notes(
            [f"skipped: {counted(len(bundle.manifest.models), 'file')} of models; `kernrec train` trains models"]
        )


def is_bundle(path: Path) -> bool:
    """Return whether a path looks like a bundle: a zip file, or a folder with a manifest."""
    if path.is_dir():
        return (path / MANIFEST).is_file()
    try:
        with open_input(path) as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False
