"""Pulling: the rows of a remote that the user trusts come to this machine, checked like any stranger's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.store.database import replace_file
from kernrec.store.keys import signer_name, trusts
from kernrec.store.remotes import Remote
from kernrec.store.share.bundle import take_groups
from kernrec.store.share.entries import Entry, copy_new, entries
from kernrec.store.share.index import IndexedBundles
from kernrec.store.share.manifest import Manifest, Retraction
from kernrec.store.share.object_store import place_of
from kernrec.store.share.place import MissingFileError, Place
from kernrec.store.share.pulled import Pulled, working_on
from kernrec.util.batches import batches
from kernrec.util.human import counted
from kernrec.util.scratch import scratch_folder


@dataclass
class PullReport:
    """The outcome of a pull."""

    measurements: int = 0
    """How many were new."""
    retracted: int = 0
    """How many no longer answer, because who shared them took them back."""
    gone: int = 0
    """How many no longer answer, because their bundles are no longer in the index."""
    left: list[str] = field(default_factory=list)
    """One line for each thing that was not taken; one for all files that are missing."""
    missing: list[str] = field(default_factory=list)
    """The files that are missing, each in a line."""


def pull(remote: Remote, *, untrusted: bool = False) -> PullReport:
    """Take what is new at a remote; `untrusted`: unsigned rows, and those of unknown keys, too.

    Raises:
        KernrecError: if the remote cannot be reached or is not one; what was taken before stays.
    """
    place = place_of(remote.url)
    with working_on(remote):
        return take_new(remote, place, cache(lambda signer: untrusted or trusts(signer)))


def take_new(remote: Remote, place: Place, wanted: Callable[[str], bool]) -> PullReport:
    """Take what is new and of a signer that is wanted; the caller holds `working_on`."""
    report = PullReport(left=copy_new(remote, place))
    with scratch_folder() as folder:
        bundles = IndexedBundles(remote, place, folder)
        log, refused = bundles.update(entries(remote))
        report.left += refused
        report.missing += bundles.missing
        if bundles.gone and remote.pulled.exists():
            report.gone = _pull_again(remote, bundles, log, wanted, report)
        else:
            bundles.forget_gone()
            _take_new(remote, bundles, log, wanted, report)
    if report.missing:
        more = f", and {len(report.missing) - 1} more files are missing" if len(report.missing) > 1 else ""
        report.left.append(f"{report.missing[0]}{more}")
    return report


class _Beside(Remote):
    """A remote whose rows are pulled once more, into a file beside the one that answers."""

    @property
    def pulled(self) -> Path:
        """The database of the rows that are pulled again."""
        return self.folder / "rows.new.duckdb"


def _pull_again(
    remote: Remote,
    bundles: IndexedBundles,
    log: Sequence[Entry],
    wanted: Callable[[str], bool],
    report: PullReport,
) -> int:
    """Pull an index of which bundles are gone into a new file, because a row may be in several bundles.

    The new file takes the place of the old one at once, and only if every other bundle could be read; queries ask the
    old one until then. Returns how many rows no longer answer.
    """
    beside = _Beside(remote.name, remote.url)
    for name in (beside.pulled, beside.pulled.with_name(beside.pulled.name + ".wal")):
        name.unlink(missing_ok=True)  # of a pull that was killed
    with Pulled.open(remote) as pulled:  # its log of what is not yet in the file must not be left beside the new one
        taken, before = pulled.taken(), pulled.measurements()
    signers = {entry.signer for entry in log if entry.name in taken}
    again = PullReport()
    with Pulled.open(beside):
        pass
    _take_new(beside, bundles, log, lambda signer: signer in signers or wanted(signer), again)
    with Pulled.read(beside) as pulled:
        lost = {entry.name for entry in log} & taken - pulled.taken()
        after = pulled.measurements()
    report.left += again.left
    if lost:
        beside.pulled.unlink()
        report.left.append(
            f"no longer there: {counted(len(bundles.gone), 'bundle')}, whose rows still answer, because {len(lost)} of"
            " the others cannot be read now"
        )
        _take_new(remote, bundles, log, wanted, PullReport())
        return 0
    replace_file(beside.pulled, remote.pulled)
    bundles.forget_gone()
    report.measurements = max(0, after - before)
    return max(0, before - after)


def _take_new(
    remote: Remote, place: Place, log: Sequence[Entry], wanted: Callable[[str], bool], report: PullReport
) -> None:
    taken: set[str] = set()
    if remote.pulled.exists():
        with Pulled.read(remote) as pulled:
            taken = pulled.taken()
    new = [entry for entry in log if entry.name not in taken]
    for batch in batches(
        [entry for entry in new if isinstance(entry.document, Manifest) and wanted(entry.signer)], _size
    ):
        _take(remote, place, batch, report)
    for entry in new:
        if isinstance(entry.document, Retraction):
            _retract(remote, entry, report)
        elif not wanted(entry.signer):
            rows = counted(entry.document.rows["measurement"], "measurement")
            how = "not signed" if not entry.signer else f"signed by an unknown key, {entry.signer}"
            report.left.append(f"{rows} of {entry.document.created_at[:10]}, {how}")
    if remote.pulled.exists():
        with Pulled.open(remote) as pulled:
            pulled.settle()


def _take(remote: Remote, place: Place, batch: Sequence[Entry], report: PullReport) -> None:
    """Take manifests together; if they are refused, each half for itself, until one is left, which gets a line."""
    with scratch_folder() as folder:
        try:
            groups = [(place, entry.document.segments) for entry in batch if isinstance(entry.document, Manifest)]
            take_groups(groups, folder, place.title)
        except UsageError as error:
            if len(batch) == 1 and isinstance(error, MissingFileError):
                report.missing.append(str(error))
            elif (half := len(batch) // 2) > 0:
                _take(remote, place, batch[:half], report)
                _take(remote, place, batch[half:], report)
            else:
                report.left.append(
                    f"what {signer_name(batch[0].signer)} pushed at {batch[0].document.created_at}: {error}"
                )
            return
        with Pulled.open(remote) as pulled:
            report.measurements += pulled.add(batch, folder)


def _retract(remote: Remote, entry: Entry, report: PullReport) -> None:
    with Pulled.open(remote) as pulled:
        gone, others = pulled.retract(entry)
    report.retracted += gone
    if others:
        report.left.append(
            f"a retraction by {signer_name(entry.signer)} does nothing to {counted(others, 'measurement')} that others "
            "shared"
        )


def _size(entry: Entry) -> int:
    """Bytes of a manifest's segments."""
    assert isinstance(entry.document, Manifest)
    return entry.document.size
