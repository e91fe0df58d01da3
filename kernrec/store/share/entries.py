"""The log of a remote: what was pushed to it and taken back, one signed document each, in `manifests/`.

Documents are named by their content and never change, so a copy on this machine stays right, and the log can be read
without the network. A manifest names the remote that it was pushed to (`remote.json`, made by the first push), so what
was taken back at one remote cannot be brought to another by anybody but its owner. A remote whose files cannot be
listed (a web server) has them listed in `index.json`, which every push brings up to date.
"""

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from kernrec.errors import UsageError
from kernrec.store.keys import Signer
from kernrec.store.remotes import Remote
from kernrec.store.share.bundle import read_signed, signed, write_documents
from kernrec.store.share.manifest import (
    Manifest,
    Retraction,
    identity_document,
    listed,
    parse_document,
    parse_identity,
    parsing,
)
from kernrec.store.share.place import INDEX, REMOTE, Folder, MissingFileError, Place, bundle_names

MOST_ENTRIES = 10_000
"""Documents of a remote; with their signatures twice as many files."""
_UNDER = "manifests/"
_LARGEST_IDENTITY = 1000


@dataclass(frozen=True)
class Entry:
    """One document of a remote's log."""

    name: str
    """Of its file, by its content."""
    document: Manifest | Retraction

    @property
    def signer(self) -> str:
        """Public key of its owner, who signed it; empty: unsigned."""
        return self.document.owner


def remote_identity(remote: Remote, place: Place, *, make: bool = False) -> str:
    """The identity of the remote at a place, which must be that of the first time; empty if it has none yet.

    make: whether to give it one then.

    Raises:
        UsageError: if another remote has taken its place.
    """
    here = Folder(remote.folder)
    there = _identity_at(place)
    if not there and make:
        write_documents(place, {REMOTE: identity_document(secrets.token_hex(16))})
        there = _identity_at(place)  # of whoever was first
    first = _identity_at(here)
    if first and there != first:
        raise UsageError(
            f"{place.title} is another remote than {remote.name} was; `kernrec db remote remove {remote.name}`, and add"
            " it again, takes it as it is"
        )
    if there and not first:
        write_documents(here, {REMOTE: identity_document(there)})
    return there


def _identity_at(place: Place) -> str:
    try:
        content = b"".join(place.read(REMOTE, _LARGEST_IDENTITY))
    except MissingFileError:
        return ""
    return parse_identity(content, f"{REMOTE} of {place.title}")


def copy_new(remote: Remote, place: Place) -> list[str]:
    """Copy the documents of a remote that are not here yet; a line for each that is malformed, or was pushed to another
    remote, and was left."""
    here = Folder(remote.folder)
    identity = remote_identity(remote, place)
    there = place.names(_UNDER)
    if len(there) > 2 * MOST_ENTRIES:
        raise UsageError(f"{place.title} has more than {MOST_ENTRIES} manifests")
    refused = []
    for name in sorted(set(_documents(there)) - set(_documents(here.names(_UNDER)))):
        try:
            document, files = read_signed(place, name, parse_document)
        except UsageError as error:
            refused.append(str(error))
            continue
        if isinstance(document, Manifest) and (not identity or document.remote != identity):
            refused.append(f"{name} of {place.title} was pushed to another remote, or to none")
            continue
        write_documents(here, files)
    return refused


def entries(remote: Remote) -> list[Entry]:
    """The log of a remote as it was last copied, in order; a document that a loss of power cut short is deleted, and
    the next pull copies it again."""
    here, read = Folder(remote.folder), []
    for name in _documents(here.names(_UNDER)):
        try:
            read.append(Entry(name, read_signed(here, name, parse_document)[0]))
        except UsageError:
            (remote.folder / name).unlink()
    return in_order(read)


def in_order(log: Iterable[Entry]) -> list[Entry]:
    """Documents, oldest first; of one second, pushes before what takes rows back."""
    return sorted(log, key=lambda e: (e.document.created_at, not isinstance(e.document, Manifest), e.name))


def publish(remote: Remote, place: Place, document: Manifest | Retraction, signer: Signer) -> Entry:
    """Write a document to a remote's log, where it becomes visible."""
    content = document.to_bytes()
    name = f"{_UNDER}{sha256(content).hexdigest()}.json"
    files = signed(name, content, signer)
    write_documents(place, files)
    write_index(place)
    write_documents(Folder(remote.folder), files)
    return Entry(name, document)


def write_index(place: Place) -> None:
    """List the log's files in `index.json`.

    Two writers may do so at once: each looks again after it wrote, so the one that writes last has seen both.
    """
    while True:
        names = place.names(_UNDER)
        write_documents(place, {INDEX: json.dumps({"names": names}, indent=0).encode()})
        if place.names(_UNDER) == names:
            return


def names_of_index(content: bytes, title: str, under: str) -> list[str]:
    """The names that an index lists; raises `UsageError` for anything else than an index."""
    with parsing(title, "the index of a remote"):
        names = listed(json.loads(content), "names", 2 * MOST_ENTRIES)
        return bundle_names((name for name in names if isinstance(name, str)), under)


def _documents(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(".json")]
