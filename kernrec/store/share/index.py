"""Indexes: folders of contributed bundles by GPU, checked as a whole, and pulled like remotes.

    <gpu>/<day>-<8 digits of the key>-<12 digits of its hash>.zip    a bundle of one GPU, signed (contribution.py)
    index.json                                                        their names, for readers of a web server

A bundle counts as long as it is there: who keeps the index takes it back by removing it, and the next pull drops its
rows. An index that lists nothing is taken for one that cannot be read.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernrec.errors import KernrecError, UsageError, file_errors
from kernrec.store.card_scales import LEAST_CONFIGS, CardScale, scales_query, shown, unlike
from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.keys import signer_name
from kernrec.store.remotes import Remote
from kernrec.store.schema import layout_of
from kernrec.store.share.bundle import read_bundle, read_signed, take_groups, write_documents
from kernrec.store.share.contribution import bundle_name
from kernrec.store.share.entries import Entry, in_order
from kernrec.store.share.manifest import Manifest, parse_manifest
from kernrec.store.share.outgoing import likeness_hash
from kernrec.store.share.place import BUNDLE, INDEX, MANIFEST, Folder, MissingFileError, Place, ZipFile, files_below
from kernrec.util.atomic_write import write_whole
from kernrec.util.batches import batches
from kernrec.util.human import counted
from kernrec.util.scratch import scratch_folder

LARGEST_BUNDLE = 2**24
"""Bytes of a bundle of an index; ten minutes take a fiftieth."""
_BATCH_BYTES = 2**26
"""Of bundles that one process checks together: to start it takes as long as to check some hundred kilobytes."""
_RAN_WELL = "outcome = 'ok' AND mig IS DISTINCT FROM true"


@dataclass
class IndexReport:
    """An index that was checked."""

    bundles: int = 0
    bad: dict[str, str] = field(default_factory=dict)
    """By name of a file, why it is refused."""
    rows: list[dict[str, object]] = field(default_factory=list)
    """Of what is good: `gpu`, `op`, `kernel`, `problems`, `configs`, `rows`, `energies`, `signers`."""
    scales: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By bundle: its times over those of others on the same card, the median, and of how many configs."""
    cards: list[CardScale] = field(default_factory=list)
    """Of each card that can be compared with three people's or more."""


def check_index(folder: Path) -> IndexReport:
    """Check every bundle of an index, and list what they hold.

    Raises:
        UsageError: there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    report = IndexReport()
    with (
        scratch_folder() as scratch,
        Database.open(scratch / "index.duckdb", read_only=False, create=True) as database,
    ):
        database.change([f"CREATE TABLE db.contributed AS {_compared('db.measurement')} LIMIT 0"])
        for batch in batches(_readable(folder, report), _size, _BATCH_BYTES):
            _add(database, folder, batch, report)
        report.rows = _listed(database)
        report.scales = _scales(database)
        report.cards = [CardScale(*row) for row in database.query(scales_query("db.contributed", _RAN_WELL))]
    return report


def _readable(folder: Path, report: IndexReport) -> Iterator[tuple[str, Manifest]]:
    """The bundles whose manifest is as it should be, oldest first; what is not is reported."""
    manifests: dict[str, Manifest] = {}
    for path in files_below(folder):
        if path.suffix == ".txt" or path.name == "README.md" or (path.parent == folder and not path.is_dir()):
            continue
        name = path.relative_to(folder).as_posix()
        report.bundles += 1
        try:
            manifests[name] = _manifest(path, name)
        except KernrecError as error:
            report.bad[name] = _reason(error, folder)
    yield from sorted(manifests.items(), key=lambda item: (item[1].created_at, item[0]))


def _manifest(path: Path, name: str) -> Manifest:
    if path.is_dir():
        raise UsageError("it is a link to a folder")
    if not BUNDLE.fullmatch(name):
        raise UsageError("its name is not <gpu>/<day>-<8 digits of the key>-<12 digits of its hash>.zip")
    manifest = read_bundle(_bundle_file(path)).manifest
    check_contributed(manifest, name)
    return manifest


def _bundle_file(path: Path) -> ZipFile:
    """A bundle on this machine, before anything of it is read."""
    if path.is_symlink() or not path.is_file():
        raise UsageError("it is not a file")
    if path.stat().st_size > LARGEST_BUNDLE:
        raise UsageError(f"it is larger than {LARGEST_BUNDLE} bytes")
    return ZipFile(path)


def check_contributed(manifest: Manifest, name: str) -> None:
    """Raises `UsageError` unless a manifest may be that of a bundle of this name in an index."""
    if (right := bundle_name(manifest)) != name:
        raise UsageError(f"its name has to be {right}")
    if manifest.remote:
        raise UsageError("it was pushed to a remote; `kernrec contribute` writes bundles")
    if manifest.size > LARGEST_BUNDLE:
        raise UsageError(f"it unpacks to more than {LARGEST_BUNDLE} bytes")
    if manifest.models:
        raise UsageError("it holds models; an index has measurements alone")
    if manifest.rows["retraction"]:
        raise UsageError("it holds retractions; who keeps the index removes the bundle instead")


def _size(item: tuple[str, Manifest]) -> int:
    """Bytes of a bundle's segments."""
    return item[1].size


def _compared(measurements: str, op: str = "''", number: str = "0") -> str:
    """The columns that the report needs of measurements, in SQL; bundle and signer are empty, for the caller to fill.

    Args:
        measurements: a relation of them.
        op: of a measurement, in SQL.
        number: of the bundle in its batch, in SQL.
    """
    same = likeness_hash(layout_of().columns["measurement"])
    return (
        "SELECT gpu, kernel, kernel_hash, config_id, problem_id, power_limit_w, locked_sm_clock_hz,"
        " locked_memory_clock_hz, protocol_version, device_uuid_hash, latency_s, energy_j, outcome, mig,"
        f" coalesce(replayed, false) AS replayed, {same} AS likeness, {op} AS op, '' AS bundle,"
        f" '' AS contributor, {number} AS number"
        f" FROM {measurements}"
    )


def _add(database: Database, folder: Path, batch: Sequence[tuple[str, Manifest]], report: IndexReport) -> None:
    """Check the rows of bundles together, and add those of each that neither repeats a recording nor what is there.

    Where they are refused, each half is checked for itself, until one is left, which is reported.
    """
    with scratch_folder() as scratch:
        try:
            groups = [(ZipFile(folder / name), manifest.segments) for name, manifest in batch]
            take_groups(groups, scratch, str(folder / batch[0][0]))
        except KernrecError as error:
            if (half := len(batch) // 2) > 0:
                _add(database, folder, batch[:half], report)
                _add(database, folder, batch[half:], report)
            else:
                report.bad[batch[0][0]] = _reason(error, folder)
            return
        numbers = "(SELECT measurement_id, number AS their_number FROM {sources}) AS source"
        ops = "(SELECT problem_id, op AS their_op FROM {problem}) AS problem"
        source = "{measurement}" + f" JOIN {numbers} USING (measurement_id) JOIN {ops} USING (problem_id)"
        database.keep_checked("batch", _compared(source, "their_op", "their_number"), scratch)
        taken = _unrefused(database, batch, report)
        bundles = ", ".join(f"({number}, {quoted(name)}, {quoted(manifest.owner)})" for number, name, manifest in taken)
        if bundles:
            values = "SELECT batch.* REPLACE (shared.bundle AS bundle, shared.owner AS contributor)"
            database.change(
                [
                    f"INSERT INTO db.contributed BY NAME {values} FROM batch"
                    f" JOIN (VALUES {bundles}) AS shared(number, bundle, owner) USING (number)"
                ]
            )


def _unrefused(
    database: Database, batch: Sequence[tuple[str, Manifest]], report: IndexReport
) -> list[tuple[int, str, Manifest]]:
    """The bundles of a batch, by number, whose rows are of their GPU, measured, and new; others are reported."""
    seen = {
        number: (gpus, replayed)
        for number, gpus, replayed in database.query(
            "SELECT number, list_sort(list(DISTINCT gpu)), bool_or(replayed) FROM batch GROUP BY 1"
        )
    }
    again: dict[int, list[tuple[str | int, int]]] = {}
    for number, bundle, count in database.query(
        "SELECT batch.number, there.bundle, count(*) FROM batch JOIN db.contributed AS there USING (likeness)"
        " GROUP BY 1, 2 ORDER BY 1, 3 DESC, 2"
    ):
        again.setdefault(number, []).append((bundle, count))
    for number, earlier, count in database.query(
        "SELECT batch.number, earlier.number, count(*) FROM batch JOIN batch AS earlier USING (likeness)"
        " WHERE earlier.number < batch.number GROUP BY 1, 2 ORDER BY 1, 3 DESC, 2"
    ):
        again.setdefault(number, []).append((earlier, count))
    taken: dict[int, tuple[int, str, Manifest]] = {}
    for number, (name, manifest) in enumerate(batch):
        gpus, replayed = seen.get(number, ([], False))
        there = [
            (taken[place][1] if isinstance(place, int) else place, count)
            for place, count in again.get(number, ())
            if not isinstance(place, int) or place in taken
        ]
        if gpus != manifest.provenance["gpus"]:
            rows = ", ".join(gpus or ["no GPU"])[:100]
            report.bad[name] = f"its rows are of {rows}, which its manifest does not say"
        elif replayed:
            report.bad[name] = "its rows repeat a recording: they are no measurements"
        elif there:
            bundle, count = there[0]
            are = "is" if count == 1 else "are"
            report.bad[name] = f"{counted(count, 'row')} of it {are} in {bundle} already"
        else:
            taken[number] = number, name, manifest
    return list(taken.values())


def _reason(error: KernrecError, folder: Path) -> str:
    """Why a bundle is refused, without the folders of this machine."""
    return re.sub(rf"{re.escape(str(folder))}/?", "", str(error))


def _listed(database: Database) -> list[dict[str, object]]:
    names = ("gpu", "op", "kernel", "problems", "configs", "rows", "energies")
    query = (
        "SELECT gpu, op, kernel, count(DISTINCT problem_id), count(DISTINCT (problem_id, config_id)), count(*),"
        " count(energy_j), list_sort(list(DISTINCT contributor)) FROM db.contributed GROUP BY ALL ORDER BY ALL"
    )
    return [
        {**dict(zip(names, row, strict=False)), "signers": [signer_name(key) for key in row[-1]]}
        for row in database.query(query)
    ]


def _scales(database: Database) -> dict[str, tuple[float, int]]:
    """By bundle its times over those of others, the median over the configs that several people measured at the same
    limits: over the median of all of them where they are three or more (card_scales.py), else over the other's."""
    same = "gpu, kernel, kernel_hash, config_id, problem_id, power_limit_w, locked_sm_clock_hz, protocol_version"
    query = f"""
        WITH time AS MATERIALIZED (
            SELECT hash({same}) AS item, contributor, bundle, ln(latency_s) AS time
            FROM db.contributed WHERE {_RAN_WELL}
        ), several AS (
            SELECT item FROM time GROUP BY item HAVING min(contributor) <> max(contributor)
        ), mine AS MATERIALIZED (
            SELECT item, contributor, bundle, median(time) AS time FROM time SEMI JOIN several USING (item) GROUP BY ALL
        ), theirs AS MATERIALIZED (
            SELECT item, contributor, median(time) AS time FROM mine GROUP BY ALL
        ), yard AS (
            SELECT item, median(time) AS time, sum(time) AS sum, count(*) AS people FROM theirs GROUP BY item
        ), ratio AS (
            SELECT mine.bundle, mine.time - CASE WHEN people > 2 THEN yard.time ELSE yard.sum - theirs.time END AS ratio
            FROM mine JOIN theirs USING (item, contributor) JOIN yard USING (item)
        )
        SELECT bundle, exp(median(ratio)), count(*) FROM ratio GROUP BY 1 ORDER BY 1
    """
    return {str(name): (float(ratio), int(count)) for name, ratio, count in database.query(query)}


def write_list(folder: Path, bad: Collection[str]) -> int:
    """Write `index.json`, by which a web server's readers learn what there is, without bad bundles; their number."""
    names = [name for name in index_names(Folder(folder)) if name not in bad]
    write_documents(Folder(folder), {INDEX: json.dumps({"names": names}, indent=0).encode()})
    return len(names)


def index_names(place: Place) -> list[str]:
    """The names of the bundles at a place; none where it is no index."""
    return [name for name in place.names() if BUNDLE.fullmatch(name)]


class IndexedBundles:
    """The bundles of an index at a place; a `Place` of their segments."""

    def __init__(self, remote: Remote, place: Place, folder: Path) -> None:
        """Begin.

        Args:
            remote: whose log of manifests is on this machine.
            place: the index, or a remote that is none.
            folder: of this program alone, for bundles that are fetched.
        """
        self.title = place.title
        self._remote, self._place, self._folder = remote, place, folder
        self._names = index_names(place)
        self.gone: set[str] = set()
        """The manifests on this machine whose bundles the index had and has no more, after `update`."""
        self._segments: dict[str, str] = {}
        self._last: tuple[str, ZipFile] | None = None
        self.missing: list[str] = []
        """The bundles that are listed and are not there, each in a line."""

    def update(self, log: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
        """Copy the manifests that this machine lacks.

        Returns:
            The log without the manifests of bundles that are gone (`gone`), and a line for each bundle that is
            malformed, and was left.

        Raises:
            UsageError: if no bundle is listed of an index that had some; nothing is changed then.
        """
        own = {name: entry for entry in log if (name := _came_as(entry)) is not None}
        if own and not self._names:
            raise UsageError(
                f"{self.title} lists no bundle, and {len(own)} were pulled from it: they stay; try again later, or"
                f" `kernrec db remote remove {self._remote.name}` forgets them"
            )
        self.gone = {own.pop(name).name for name in own.keys() - set(self._names)}
        refused = []
        for name in self._names:
            if name not in own:
                try:
                    own[name] = self._copy(name)
                except MissingFileError as error:
                    self.missing.append(str(error))
                except UsageError as error:
                    refused.append(f"{name}: {_reason(error, self._folder)}")
        for name, entry in own.items():
            assert isinstance(entry.document, Manifest)
            self._segments.update((segment.name, name) for segment in entry.document.segments)
        current = {entry.name: entry for entry in (*log, *own.values()) if entry.name not in self.gone}
        return in_order(current.values()), refused

    def forget_gone(self) -> None:
        """Delete the manifests of bundles that are gone, whose rows are not there any more."""
        for name in self.gone:
            for file in (name, name.removesuffix(".json") + ".sig"):
                (self._remote.folder / file).unlink(missing_ok=True)

    def _copy(self, name: str) -> Entry:
        """Copy the manifest of a bundle to this machine; that of one that a loss of power damages is copied again."""
        manifest, files = read_signed(self._bundle(name), MANIFEST, parse_manifest)
        check_contributed(manifest, name)
        stem = f"manifests/{hashlib.sha256(files[MANIFEST]).hexdigest()}"
        with file_errors(self._remote.folder, "written"):
            (self._remote.folder / "manifests").mkdir(parents=True, exist_ok=True)
            for each, content in files.items():
                write_whole(self._remote.folder / (stem + (".json" if each == MANIFEST else ".sig")), content)
        return Entry(f"{stem}.json", manifest)

    def _bundle(self, name: str) -> ZipFile:
        """A bundle, fetched if it was not yet; whoever reads its segments reads one after the other."""
        if self._last is None or self._last[0] != name:
            self._last = name, self._opened(name)
        return self._last[1]

    def _opened(self, name: str) -> ZipFile:
        if isinstance(self._place, Folder):
            return _bundle_file(self._place.path / name)
        file = self._folder / hashlib.sha256(name.encode()).hexdigest()
        if not file.exists():
            with file.open("xb") as target:
                for piece in self._place.read(name, LARGEST_BUNDLE):
                    target.write(piece)
        return ZipFile(file)

    def read(self, name: str, most: int) -> Iterator[bytes]:
        """See `Place.read`; a segment is that of a bundle."""
        bundle = self._segments.get(name)
        return self._place.read(name, most) if bundle is None else self._bundle(bundle).read(name, most)

    def write(self, name: str, source: Path) -> None:
        """See `Place.write`: bundles enter an index whole."""
        raise UsageError(f"{self.title} is an index, to which nothing is pushed")

    def names(self, under: str = "") -> list[str]:
        """See `Place.names`."""
        return self._place.names(under)


def _came_as(entry: Entry) -> str | None:
    """The name of the bundle of an index that a document came with; manifests of remotes name theirs."""
    if isinstance(entry.document, Manifest) and not entry.document.remote:
        with suppress(UsageError):
            return bundle_name(entry.document)
    return None


def shown_scales(scales: Mapping[str, tuple[float, int]]) -> list[str]:
    """A line for each bundle whose times are not as those of others on the same card."""
    return [
        f"{name}: its times are {ratio:.2f} times those of others on the same card ({counted(count, 'config')})"
        for name, (ratio, count) in scales.items()
        if count >= LEAST_CONFIGS and unlike(ratio)
    ]


def shown_cards(cards: Iterable[CardScale]) -> list[str]:
    """A line for each card whose costs are not as those of its kind."""
    lines = (shown(card, f"the {card.gpu} of {signer_name(card.contributor)}") for card in cards)
    return [line for line in lines if line is not None]
