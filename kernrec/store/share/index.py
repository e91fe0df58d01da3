"""Indexes: folders of contributed bundles by GPU, checked as a whole, and pulled like remotes.

    <gpu>/<day>-<8 digits of the key>-<12 digits of its hash>.zip    a bundle of one GPU, signed (contribution.py)
    index.json                                                        their names, for readers of a web server

A bundle counts as long as it is there: who keeps the index takes it back by removing it, and the next pull drops its
rows.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copy

from kernrec.errors import KernrecError, UsageError
from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.keys import signer_name
from kernrec.store.remotes import Remote
from kernrec.store.share.bundle import read_bundle, read_signed, take_rows, write_documents
from kernrec.store.share.contribution import bundle_name
from kernrec.store.share.entries import entries
from kernrec.store.share.manifest import Manifest, parse_manifest
from kernrec.store.share.outgoing import likeness_key
from kernrec.store.share.place import BUNDLE, INDEX, MANIFEST, Folder, Place, ZipFile
from kernrec.util.human import counted
from kernrec.util.scratch import scratch_folder

LARGEST_BUNDLE = 2**24
"""Bytes of a bundle of an index; ten minutes take a fiftieth."""
UNLIKE = 0.1
"""Times that differ by more from those of others on the same card are mentioned."""
LEAST_SHARED = 3
"""Configs that several measured, for that."""
_HASH_DIGITS = 12
_DOCUMENTS = "manifests/"


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
        database.change(["CREATE TABLE db.origin (measurement_id VARCHAR, bundle VARCHAR, signer VARCHAR)"])
        for name, manifest in _readable(folder, report):
            try:
                _add(database, ZipFile(folder / name), name, manifest)
            except KernrecError as error:
                report.bad[name] = _reason(error, folder)
        report.rows = _listed(database)
        report.scales = _scales(database)
    return report


def _readable(folder: Path, report: IndexReport) -> Iterator[tuple[str, Manifest]]:
    """The bundles whose manifest is as it should be, oldest first; what is not is reported."""
    manifests: dict[str, Manifest] = {}
    for path in sorted(path for path in folder.glob("*/*") if path.suffix != ".txt" and path.name != "README.md"):
        name = path.relative_to(folder).as_posix()
        report.bundles += 1
        try:
            manifests[name] = _manifest(path, name)
        except KernrecError as error:
            report.bad[name] = _reason(error, folder)
    yield from sorted(manifests.items(), key=lambda item: (item[1].created_at, item[0]))


def _manifest(path: Path, name: str) -> Manifest:
    if not BUNDLE.fullmatch(name):
        raise UsageError("its name is not <gpu>/<day>-<8 digits of the key>-<12 digits of its hash>.zip")
    if path.is_symlink() or not path.is_file():
        raise UsageError("it is not a file")
    if path.stat().st_size > LARGEST_BUNDLE:
        raise UsageError(f"it is larger than {LARGEST_BUNDLE} bytes")
    manifest = read_bundle(ZipFile(path)).manifest
    check_contributed(manifest, name)
    return manifest


def check_contributed(manifest: Manifest, name: str) -> None:
    """Raises `UsageError` unless a manifest may be that of a bundle of this name in an index."""
    if (right := bundle_name(manifest)) != name:
        raise UsageError(f"its name has to be {right}")
    if manifest.remote:
        raise UsageError("it was pushed to a remote; `kernrec contribute` writes bundles")
    if manifest.models:
        raise UsageError("it holds models; an index has measurements alone")
    if manifest.rows["retraction"]:
        raise UsageError("it holds retractions; who keeps the index removes the bundle instead")


def _add(database: Database, place: ZipFile, name: str, manifest: Manifest) -> None:
    """Check the rows of a bundle and add them, unless they repeat a recording or are there already."""
    with scratch_folder() as folder:
        take_rows(place, manifest.segments, folder)
        likeness = likeness_key(database.columns("measurement"))
        query = f"SELECT gpu, replayed, {likeness} AS likeness FROM {{rows}}"
        looked_at = Path(copy(folder / "measurement.parquet", folder / "looked-at.parquet"))  # it is moved away
        database.keep("contributed", query, {"rows": [looked_at]})
        ((gpus, replayed),) = database.query(
            "SELECT list_sort(list(DISTINCT gpu)), coalesce(bool_or(replayed), false) FROM contributed"
        )
        if gpus != manifest.provenance["gpus"]:
            raise UsageError(f"its rows are of {', '.join(gpus or ['no GPU'])[:100]}, which its manifest does not say")
        if replayed:
            raise UsageError("its rows repeat a recording: they are no measurements")
        again = database.query(
            "SELECT bundle, count(*) FROM contributed"
            f" JOIN (SELECT {likeness} AS likeness, bundle FROM db.measurement JOIN db.origin USING (measurement_id))"
            " USING (likeness) GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 1"
        )
        if again:
            bundle, count = again[0]
            raise UsageError(f"{counted(count, 'row')} of it {'is' if count == 1 else 'are'} in {bundle} already")

        def write(exchange: Path) -> None:
            for file in folder.glob("*.parquet"):
                if file.stem != "retraction":
                    file.rename(exchange / file.name)

        def then(exchange: Path) -> list[str]:
            new = quoted(exchange / "measurement*.parquet")
            values = f"{quoted(name)}, {quoted(manifest.owner)}"
            return [f"INSERT INTO db.origin SELECT measurement_id, {values} FROM read_parquet({new})"]

        database.add_from(write, then=then)


def _reason(error: KernrecError, folder: Path) -> str:
    """Why a bundle is refused, without the folders of this machine."""
    return re.sub(rf"{re.escape(str(folder))}/?", "", str(error))


def _listed(database: Database) -> list[dict[str, object]]:
    names = ("gpu", "op", "kernel", "problems", "configs", "rows", "energies")
    query = (
        "SELECT gpu, op, kernel, count(DISTINCT problem_id), count(DISTINCT (problem_id, config_id)), count(*),"
        " count(energy_j), list_sort(list(DISTINCT signer)) FROM db.measurement"
        " JOIN (SELECT problem_id, op FROM db.problem) USING (problem_id)"
        " JOIN db.origin USING (measurement_id) GROUP BY ALL ORDER BY ALL"
    )
    return [
        {**dict(zip(names, row, strict=False)), "signers": [signer_name(key) for key in row[-1]]}
        for row in database.query(query)
    ]


def _scales(database: Database) -> dict[str, tuple[float, int]]:
    """By bundle its times over the median of those of other signers, for the same config at the same limits."""
    same = "gpu, kernel, kernel_hash, config_id, problem_id, limit_w, clock_hz"
    query = f"""
        WITH time AS (
            SELECT * EXCLUDE (power_limit_w, locked_sm_clock_hz, latency_s),
                   coalesce(power_limit_w, 0) AS limit_w, coalesce(locked_sm_clock_hz, 0) AS clock_hz,
                   median(latency_s) AS latency_s
            FROM (
                SELECT gpu, kernel, kernel_hash, config_id, problem_id, power_limit_w, locked_sm_clock_hz, latency_s,
                       bundle, signer
                FROM db.measurement JOIN db.origin USING (measurement_id) WHERE outcome = 'ok'
            ) GROUP BY ALL
        ), ratio AS (
            SELECT mine.bundle, any_value(mine.latency_s) / median(other.latency_s) AS ratio
            FROM time AS mine JOIN time AS other USING ({same}) WHERE mine.signer <> other.signer
            GROUP BY mine.bundle, {same}
        )
        SELECT bundle, median(ratio), count(*) FROM ratio GROUP BY 1 ORDER BY 1
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
    """The bundles of an index at a place, fetched to a folder when they are read; a `Place` of their segments."""

    def __init__(self, remote: Remote, place: Place, folder: Path) -> None:
        """Begin.

        Args:
            remote: whose log of manifests is on this machine.
            place: the index, or a remote that is none.
            folder: of this program alone, for the files.
        """
        self.title = place.title
        self._remote, self._place, self._folder = remote, place, folder
        self._here = Folder(remote.folder)
        self._names = {_digits(name): name for name in index_names(place)}
        self._segments: dict[str, str] | None = None

    def copy_new(self) -> list[str]:
        """Copy the manifests that are not on this machine yet, and forget those of bundles that are gone.

        Returns:
            A line for each bundle that is malformed, and was left.
        """
        there = {entry.name.removeprefix(_DOCUMENTS)[:_HASH_DIGITS]: entry.name for entry in self._own()}
        gone = [name for digits, name in there.items() if digits not in self._names]
        for name in gone:
            for file in (name, name.removesuffix(".json") + ".sig"):
                (self._remote.folder / file).unlink(missing_ok=True)
        if gone:  # a row may be in other bundles, too: all of them are taken anew
            self._remote.pulled.unlink(missing_ok=True)
        refused = []
        for digits, name in sorted(self._names.items()):
            if digits in there:
                continue
            try:
                manifest, files = read_signed(self._bundle(name), MANIFEST, parse_manifest)
                check_contributed(manifest, name)
            except UsageError as error:
                refused.append(f"{name}: {_reason(error, self._folder)}")
                continue
            stem = f"{_DOCUMENTS}{hashlib.sha256(files[MANIFEST]).hexdigest()}"
            write_documents(
                self._here, {stem + (".json" if each == MANIFEST else ".sig"): files[each] for each in files}
            )
        return refused

    def _own(self) -> Iterator["_Entry"]:
        """The manifests on this machine that came by an index: those of remotes name theirs."""
        for entry in entries(self._remote):
            if isinstance(entry.document, Manifest) and not entry.document.remote:
                yield _Entry(entry.name, entry.document)

    def _bundle(self, name: str) -> ZipFile:
        """A bundle, fetched if it was not yet."""
        file = self._folder / f"{_digits(name)}.zip"
        if not file.exists():
            with file.open("xb") as target:
                for piece in self._place.read(name, LARGEST_BUNDLE):
                    target.write(piece)
        return ZipFile(file)

    def read(self, name: str, most: int) -> Iterator[bytes]:
        """See `Place.read`; a segment is that of a bundle."""
        if self._segments is None:
            self._segments = {
                segment.name: self._names[digits]
                for entry in self._own()
                for segment in entry.manifest.segments
                if (digits := entry.name.removeprefix(_DOCUMENTS)[:_HASH_DIGITS]) in self._names
            }
        bundle = self._segments.get(name)
        return self._place.read(name, most) if bundle is None else self._bundle(bundle).read(name, most)

    def write(self, name: str, source: Path) -> None:
        """See `Place.write`: bundles enter an index whole."""
        raise UsageError(f"{self.title} is an index, to which nothing is pushed")

    def names(self, under: str = "") -> list[str]:
        """See `Place.names`."""
        return self._place.names(under)


@dataclass(frozen=True)
class _Entry:
    """A manifest with the name of its file."""

    name: str
    manifest: Manifest


def _digits(name: str) -> str:
    """The digits of a bundle's hash in its name."""
    return name.removesuffix(".zip")[-_HASH_DIGITS:]


def shown_scales(scales: Mapping[str, tuple[float, int]]) -> list[str]:
    """A line for each bundle whose times are not as those of others on the same card."""
    return [
        f"{name}: its times are {ratio:.2f} times those of others on the same card ({counted(count, 'config')})"
        for name, (ratio, count) in scales.items()
        if count >= LEAST_SHARED and abs(ratio - 1.0) > UNLIKE
    ]
