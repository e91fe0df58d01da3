"""The log of a remote: what was pushed to it and taken back, one signed document each, in `manifests/`.

Documents are named by their content and never change, so a copy on this machine stays right, and the log can be read
without the network. A remote whose files cannot be listed (a web server) has them listed in `index.json`, which every
push brings up to date.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from kernrec.errors import UsageError
from kernrec.store.keys import Signer
from kernrec.store.remotes import Remote
from kernrec.store.share.bundle import read_signed, signed, write_documents
from kernrec.store.share.manifest import Manifest, Retraction, listed, parse_document, parsing
from kernrec.store.share.place import INDEX, Folder, Place, bundle_names

MOST_ENTRIES = 10_000
"""Documents of a remote; with their signatures twice as many files."""
_UNDER = "manifests/"


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


def copy_new(remote: Remote, place: Place) -> list[str]:
    """Copy the documents of a remote that are not here yet; a line for each that is malformed and was left."""
    here = Folder(remote.folder)
    there = place.names(_UNDER)
    if len(there) > 2 * MOST_ENTRIES:
        raise UsageError(f"{place.title} has more than {MOST_ENTRIES} manifests")
    refused = []
    for name in sorted(set(_documents(there)) - set(_documents(here.names(_UNDER)))):
        try:
            _, files = read_signed(place, name, parse_document)
        except UsageError as error:
            refused.append(str(error))
            continue
        write_documents(here, files)
    return refused


def entries(remote: Remote) -> list[Entry]:
    """The log of a remote as it was last copied, oldest first."""
    here = Folder(remote.folder)
    read = [Entry(name, read_signed(here, name, parse_document)[0]) for name in _documents(here.names(_UNDER))]
    return sorted(read, key=lambda entry: (entry.document.created_at, entry.name))


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
