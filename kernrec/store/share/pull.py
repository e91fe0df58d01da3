"""Pull bundles of rows from a place if a trusted key signed them, and check their rows like all untrusted rows.

A pull only adds rows. Rows stay even if the place no longer lists their bundle. Only their signer can withdraw them.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernrec import paths
from kernrec.errors import KernrecError, UsageError
from kernrec.store.keys import LARGEST_SIGNATURE, own_key, signer_of, trusted
from kernrec.store.share.bundle import Bundle, read_bundle, read_signed, take_groups
from kernrec.store.share.manifest import (
    LARGEST_DOCUMENT,
    Withdrawal,
    bundle_name,
    parse_withdrawal,
)
from kernrec.store.share.place import BUNDLE, OLD, WITHDRAWAL, Folder, MissingFileError, Place, ZipFile
from kernrec.store.share.pulled import add_bundles, apply_withdrawal, settle, taken, working_on
from kernrec.util.files import scratch_folder
from kernrec.util.human import counted

LARGEST_BUNDLE = 2**28
"""Maximum size of a bundle at a place in bytes. This is enough for a million rows."""
BATCH_BYTES = 2**28
"""Maximum total size of the bundles that one child process checks, in bytes. Starting the process takes longer than
checking a few bundles. If a pull is interrupted, complete batches stay in the database."""
_SHOWN = 5
"""Maximum number of unknown keys to list one by one."""


@dataclass
class PullReport:
    """Numbers of rows and messages that a pull returns."""

    measurements: int = 0
    """Number of measurements that were added."""
    withdrawn: int = 0
    """Number of measurements that were removed because their signer withdrew them."""
    refused: dict[str, str] = field(default_factory=dict)
    """Reasons for refusing bundles and withdrawals, keyed by file name."""
    missing: list[str] = field(default_factory=list)
    """Messages, one for each file that the place lists but does not have."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Number of skipped bundles, keyed by the untrusted public key that signed them."""
    notes: list[str] = field(default_factory=list)

    @property
    def left(self) -> list[str]:
        """Messages about everything that the pull skipped, with one message for all missing files."""
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
    """Pull a place's new bundles and withdrawals that a trusted key signed. If `untrusted` is True, accept any key.

    Raise `KernrecError` if the place cannot be reached. Rows that were pulled before the error stay.
    """
    with working_on(paths.pulled()):
        keys = {key for key in (*trusted(), own_key()) if key}
        return take_new(place, paths.pulled(), None if untrusted else keys)


def take_new(place: Place, path: Path, keys: Collection[str] | None = None, names: Sequence[str] = ()) -> PullReport:
    """Pull new bundles and withdrawals that one of `keys` signed. The caller must hold the lock `working_on`.

    Args:
        path: Path of the database of pulled rows.
        keys: Public keys of the signers, or None for any signer.
        names: Names of the files in the place, if the caller has already listed them.
    """
    report, already = PullReport(), taken(path)
    new = [name for name in names or place.names() if name not in already]
    with scratch_folder() as folder:
        bundles = _bundles(place, new, folder, keys, report)
        for batch in _batches(bundles):
            _take(path, dict(batch), place.title, report)
            for _, bundle in batch:
                if isinstance(bundle.place, ZipFile) and bundle.place.path.parent == folder:
                    bundle.place.path.unlink()
        for name, withdrawal in _withdrawals(place, new, report):
            if keys is None or withdrawal.owner in keys:
                report.withdrawn += apply_withdrawal(path, name, withdrawal)
    settle(path)
    return report


def _bundles(
    place: Place,
    new: Sequence[str],
    folder: Path,
    keys: Collection[str] | None,
    report: PullReport,
) -> Iterator[tuple[str, Bundle]]:
    """Yield (name, bundle) for the new bundles that are signed with `keys`, oldest day first.

    For each unknown key, read only one bundle. Count its other bundles without reading them, because their names
    contain the first digits of the key.
    """
    if any(map(_is_old, new)):
        report.notes.append(
            f"{place.title} is a remote of kernrec 0.1, which is only read: `kernrec db push` to a new place moves your"
            " rows there"
        )
    beginnings = {key[:8] for key in keys or ()}
    unknown: dict[str, str] = {}
    for name in sorted(new, key=lambda name: name.rpartition("/")[2]):
        match = BUNDLE.fullmatch(name)
        if not (match or _is_old(name)):
            continue
        if match and match[1] in unknown:
            report.unknown[unknown[match[1]]] += 1
            continue
        try:
            if match is not None:
                bundle = placed_bundle(place, name, folder)
            elif _withdraws(place, name):
                continue
            else:
                bundle = read_bundle(place, name)
                if name != f"manifests/{hashlib.sha256(bundle.content).hexdigest()}.json":
                    raise UsageError("its content does not match its name")
        except MissingFileError as error:
            report.missing.append(str(error))
        except UsageError as error:
            report.refused[name] = str(error)
        else:
            if keys is None or bundle.manifest.owner in keys:
                yield name, bundle
            else:
                report.unknown[bundle.manifest.owner] += 1
                if match and match[1] not in beginnings:
                    unknown[match[1]] = bundle.manifest.owner


def _batches(bundles: Iterable[tuple[str, Bundle]]) -> Iterator[list[tuple[str, Bundle]]]:
    batch: list[tuple[str, Bundle]] = []
    size = 0
    for name, bundle in bundles:
        if batch and size + bundle.manifest.size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((name, bundle))
        size += bundle.manifest.size
    if batch:
        yield batch


def placed_bundle(place: Place, name: str, folder: Path) -> Bundle:
    """Fetch a bundle from a place into a private folder.

    Raises:
        MissingFileError: The place does not have the bundle.
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


def _withdraws(place: Place, name: str) -> bool:
    return b'"kernrec retraction"' in b"".join(place.read(name, LARGEST_DOCUMENT))


def _withdrawals(place: Place, new: Sequence[str], report: PullReport) -> Iterator[tuple[str, Withdrawal]]:
    for name in new:
        try:
            if WITHDRAWAL.fullmatch(name):
                content = b"".join(place.read(name, LARGEST_DOCUMENT + LARGEST_SIGNATURE))
                if name != f"withdrawn/{hashlib.sha256(content).hexdigest()}.json":
                    raise UsageError("its content does not match its name")
                line, _, signature = content.partition(b"\n")
                withdrawal = parse_withdrawal(line, name)
                if signer_of(line, signature, name) != withdrawal.owner:
                    raise UsageError("it is not signed by its owner")
                yield name, withdrawal
            elif _is_old(name) and _withdraws(place, name):
                yield name, read_signed(place, name, parse_withdrawal)[0]
        except MissingFileError as error:
            report.missing.append(str(error))
        except UsageError as error:
            report.refused[name] = str(error)


def _take(path: Path, batch: Mapping[str, Bundle], title: str, report: PullReport) -> None:
    with scratch_folder() as folder:
        try:
            take_groups(list(batch.values()), folder, title, placed=True)
        except KernrecError as error:
            names = list(batch)
            if len(names) > 1:
                for half in (names[: len(names) // 2], names[len(names) // 2 :]):
                    _take(path, {name: batch[name] for name in half}, title, report)
            elif isinstance(error, MissingFileError):
                report.missing.append(str(error))
            else:
                report.refused[names[0]] = str(error)
            return
        report.measurements += add_bundles(path, batch, folder)
