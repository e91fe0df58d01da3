"""Pull bundles of rows from a shared folder or server if a trusted key signed them.

A pull only adds rows. A row stays even if the server no longer lists its bundle. Only the signer can withdraw a row.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from kernrec import paths
from kernrec.errors import KernrecError, UsageError
from kernrec.store.keys import LARGEST_SIGNATURE, own_key, signer_of, trusted
from kernrec.store.share.bundle import Bundle, read_bundle, read_signed, take_groups
from kernrec.store.share.manifest import LARGEST_DOCUMENT, Withdrawal, bundle_name, parse_withdrawal
from kernrec.store.share.place import BUNDLE, OLD, WITHDRAWAL, Folder, MissingFileError, Place, ZipFile
from kernrec.store.share.pulled import add_bundles, apply_withdrawal, settle, taken, working_on
from kernrec.util.files import scratch_folder
from kernrec.util.human import counted

_Read = TypeVar("_Read")

LARGEST_BUNDLE = 2**28
"""Maximum bytes of a bundle in a shared folder or server, enough for a million rows."""
BATCH_BYTES = 2**28
"""Maximum total size of the bundles that one child process checks, in bytes. Complete batches stay in the database if a
pull is interrupted."""
_SHOWN = 5
"""Maximum number of unknown keys to list one by one."""


@dataclass
class PullReport:
    measurements: int = 0
    """Number of measurements that were added."""
    withdrawn: int = 0
    """Number of measurements that were removed because their signer withdrew them."""
    refused: dict[str, str] = field(default_factory=dict)
    """Reasons for refusing bundles and withdrawals, keyed by file name."""
    missing: list[str] = field(default_factory=list)
    """One message for each file that the shared folder or server lists but does not have."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Number of skipped bundles, keyed by the untrusted key that signed them."""
    notes: list[str] = field(default_factory=list)

    @property
    def left(self) -> list[str]:
        """Messages about everything that the pull skipped."""
        lines = [*self.notes, *(f"{name}: {reason}" for name, reason in self.refused.items())]
        for signer, count in self.unknown.most_common(_SHOWN):
            lines.append(f"skipped: {counted(count, 'bundle')}, signed by an unknown key, {signer}")
        if len(self.unknown) > _SHOWN:
            lines.append(f"skipped: bundles of {len(self.unknown) - _SHOWN} more unknown keys")
        if self.missing:
            more = f", and {len(self.missing) - 1} more files are missing" if len(self.missing) > 1 else ""
            lines.append(f"{self.missing[0]}{more}")
        return lines


def pull(place: Place, *, untrusted: bool = False) -> PullReport:
    """Pull new bundles and withdrawals that a trusted key signed. If `untrusted` is True, accept any key.

    Raise `KernrecError` if the shared folder or server cannot be reached. Rows that were pulled before the error stay.
    """
    with working_on(paths.pulled()):
        keys = {key for key in (*trusted(), own_key()) if key}
        return take_new(place, paths.pulled(), None if untrusted else keys)


def take_new(place: Place, path: Path, keys: Collection[str] | None = None, names: Sequence[str] = ()) -> PullReport:
    """Pull new bundles and withdrawals. The caller must hold the lock `working_on`.

    Args:
        path: Path of the database of pulled rows.
        keys: Public keys of accepted signers, or None for any signer.
        names: Names of the shared files, if the caller has already listed them.
    """
    return _Pull(place, path, keys).run(names or place.names())


class _Pull:
    def __init__(self, place: Place, path: Path, keys: Collection[str] | None) -> None:
        self._place, self._path, self._keys = place, path, keys
        self._report = PullReport()
        # Maps the first digits of each untrusted key to the key. Names of bundles contain these digits, so `_Pull` need
        # not read more than one bundle of each untrusted key.
        self._unknown: dict[str, str] = {}

    def run(self, names: Iterable[str]) -> PullReport:
        already = taken(self._path)
        new = sorted((name for name in names if name not in already), key=lambda name: name.rpartition("/")[2])
        if any(map(_is_old, new)):
            self._report.notes.append(
                f"{self._place.title} is a remote of kernrec 0.1, which is only read: `kernrec db push` to a new place"
                " moves your rows there"
            )
        with scratch_folder() as folder:
            batch, size = dict[str, Bundle](), 0
            for name, bundle in self._valid(new, lambda name: self._bundle(name, folder)):
                if batch and size + bundle.manifest.size > BATCH_BYTES:
                    self._add(batch, folder)
                    batch, size = {}, 0
                batch[name], size = bundle, size + bundle.manifest.size
            self._add(batch, folder)
        for name, withdrawal in self._valid(new, self._withdrawal):
            if self._keys is None or withdrawal.owner in self._keys:
                self._report.withdrawn += apply_withdrawal(self._path, name, withdrawal)
        settle(self._path)
        return self._report

    def _valid(self, names: Sequence[str], read: Callable[[str], _Read | None]) -> Iterator[tuple[str, _Read]]:
        """Yield (name, document) for each file that `read` returns. Report files that are missing or refused."""
        for name in names:
            try:
                if (document := read(name)) is not None:
                    yield name, document
            except MissingFileError as error:
                self._report.missing.append(str(error))
            except UsageError as error:
                self._report.refused[name] = str(error)

    def _bundle(self, name: str, folder: Path) -> Bundle | None:
        """Fetch a bundle. Return None if no accepted key signed it."""
        match = BUNDLE.fullmatch(name)
        if match and match[1] in self._unknown:
            self._report.unknown[self._unknown[match[1]]] += 1
            return None
        if match:
            bundle = placed_bundle(self._place, name, folder)
        elif _is_old(name) and not self._withdraws(name):
            bundle = read_bundle(self._place, name)
            if name != f"manifests/{hashlib.sha256(bundle.content).hexdigest()}.json":
                raise UsageError("its content does not match its name")
        else:
            return None
        owner = bundle.manifest.owner
        if self._keys is None or owner in self._keys:
            return bundle
        self._report.unknown[owner] += 1
        if match and not any(key.startswith(match[1]) for key in self._keys):
            self._unknown[match[1]] = owner
        return None

    def _withdrawal(self, name: str) -> Withdrawal | None:
        if _is_old(name) and self._withdraws(name):
            old: Withdrawal = read_signed(self._place, name, parse_withdrawal)[0]
            return old
        if not WITHDRAWAL.fullmatch(name):
            return None
        content = b"".join(self._place.read(name, LARGEST_DOCUMENT + LARGEST_SIGNATURE))
        if name != f"withdrawn/{hashlib.sha256(content).hexdigest()}.json":
            raise UsageError("its content does not match its name")
        line, _, signature = content.partition(b"\n")
        withdrawal = parse_withdrawal(line, name)
        if signer_of(line, signature, name) != withdrawal.owner:
            raise UsageError("it is not signed by its owner")
        return withdrawal

    def _withdraws(self, name: str) -> bool:
        return b'"kernrec retraction"' in b"".join(self._place.read(name, LARGEST_DOCUMENT))

    def _add(self, batch: Mapping[str, Bundle], folder: Path) -> None:
        """Add the rows of all bundles that are not refused, and delete the copies of the bundles in `folder`."""
        if not batch:
            return
        with scratch_folder() as checked:
            try:
                take_groups(list(batch.values()), checked, self._place.title, placed=True)
            except KernrecError as error:
                names = list(batch)
                if len(names) > 1:
                    for half in (names[: len(names) // 2], names[len(names) // 2 :]):
                        self._add({name: batch[name] for name in half}, folder)
                elif isinstance(error, MissingFileError):
                    self._report.missing.append(str(error))
                else:
                    self._report.refused[names[0]] = str(error)
            else:
                self._report.measurements += add_bundles(self._path, batch, checked)
        for bundle in batch.values():
            if isinstance(bundle.place, ZipFile) and bundle.place.path.parent == folder:
                bundle.place.path.unlink(missing_ok=True)


def placed_bundle(place: Place, name: str, folder: Path) -> Bundle:
    """Fetch a bundle from a shared folder or server into a private folder.

    Raises:
        MissingFileError: The shared folder or server does not have the bundle.
        UsageError: The bundle is too large, is not valid, or has content that does not match its name.
    """
    if isinstance(place, Folder):
        file = place.path / name
        if not file.exists():
            raise MissingFileError(f"{place.title} has no {name}")
        if file.is_symlink() or not file.is_file():
            raise UsageError("it is not a file")
        if file.stat().st_size > LARGEST_BUNDLE:
            raise UsageError(f"it is larger than {LARGEST_BUNDLE} bytes")
    else:
        file = folder / hashlib.sha256(name.encode()).hexdigest()
        with file.open("wb") as target:
            for piece in place.read(name, LARGEST_BUNDLE):
                target.write(piece)
    bundle = read_bundle(ZipFile(file, name))
    if (right := bundle_name(bundle.manifest, bundle.content)) != name:
        raise UsageError(f"its name has to be {right}")
    if bundle.manifest.size > LARGEST_BUNDLE:
        raise UsageError(f"it unpacks to more than {LARGEST_BUNDLE} bytes")
    return bundle


def _is_old(name: str) -> bool:
    return bool(OLD.fullmatch(name)) and name.endswith(".json")
