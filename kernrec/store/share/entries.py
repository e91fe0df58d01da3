"""The log of a remote: what was pushed to it and taken back, one signed document each, in `manifests/`.

Documents are named by their content and never change, so a copy on this machine stays right, and the log can be read
without the network. A remote whose files cannot be listed (a web server) has them listed in `index.json`, which every
push brings up to date.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256

from kernrec.errors import UsageError
from kernrec.store.remotes import Remote
from kernrec.store.share.bundle import read_signed, signed, write_documents
from kernrec.store.share.manifest import Manifest, listed, parsing
from kernrec.store.share.place import INDEX, Folder, Place, known_names
from kernrec.store.share.retraction import Retraction, parse_document
from kernrec.store.signature import Signer

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


def copy_new(remote: Remote, place: Place) -> tuple[int, list[str]]:
    """Copy the documents of a remote that are not here yet.

    Returns:
        How many were new, and a line for each that is not what it should be and was left.
    """
    here = Folder(remote.folder)
    there = place.names(_UNDER)
    if len(there) > 2 * MOST_ENTRIES:
        raise UsageError(f"{place.title} has more than {MOST_ENTRIES} manifests")
    missing = sorted(set(_documents(there)) - set(_documents(here.names(_UNDER))))
    refused = []
    for name in missing:
        try:
            _, files = read_signed(place, name, parse_document)
        except UsageError as error:
            refused.append(str(error))
            continue
        write_documents(here, files)
    return len(missing) - len(refused), refused


def entries(remote: Remote) -> list[Entry]:
    """The log of a remote as it was last copied, oldest first."""
    here = Folder(remote.folder)
    read = []
    for name in _documents(here.names(_UNDER)):
        document, _ = read_signed(here, name, parse_document)
        read.append(Entry(name, document))
    return sorted(read, key=lambda entry: (entry.document.created_at, entry.name))


def write_index(place: Place) -> None:
    """List the log's files in `index.json`.

    Two writers may do so at once: each looks again after it wrote, so the one that writes last has seen both.
    """
    while True:
        names = place.names(_UNDER)
        write_documents(place, {INDEX: json.dumps({"names": names}, indent=0).encode()})
        if place.names(_UNDER) == names:
            return


def publish(remote: Remote, place: Place, entry: Entry, signer: Signer) -> Entry:
    """Write a document to a remote's log, where it becomes visible."""
    content = entry.document.to_bytes()
    name = f"manifests/{sha256(content).hexdigest()}.json"
    files = signed(name, content, signer)
    write_documents(place, files)
    write_index(place)
    write_documents(Folder(remote.folder), files)
    return replace(entry, name=name)


def names_of_index(content: bytes, where: str, under: str) -> list[str]:
    """The names that an index lists; raises `UsageError` for anything else than an index."""
    with parsing(where, "the index of a remote"):
        names = listed(json.loads(content), "names", 2 * MOST_ENTRIES)
        return known_names((name for name in names if isinstance(name, str)), under)


def _documents(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(".json")]
