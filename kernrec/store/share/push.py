"""Push rows that a place (shared folder or server) lacks, as one signed bundle per GPU.

Bundles are written atomically and never change, so several people may push at the same time. After a killed push, the
next push adds the missing bundles.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.store.connection import quoted
from kernrec.store.coverage import contributed
from kernrec.store.database import Database
from kernrec.store.keys import Signer
from kernrec.store.reader import checked_segments
from kernrec.store.share.bundle import Bundle, write_bundle, write_content
from kernrec.store.share.manifest import TABLES, bundle_name
from kernrec.store.share.outgoing import Outgoing, Selection, keep_fresh, likeness_key, outgoing, secret_of
from kernrec.store.share.place import BUNDLE, INDEX, WITHDRAWAL, Folder, Place, ZipFile, files_below, writable_names
from kernrec.store.share.pull import LARGEST_BUNDLE, PullReport, take_new
from kernrec.store.share.pulled import add_bundles, settle, working_on
from kernrec.store.share.withdraw import publish, withdrawn_here
from kernrec.util.files import scratch_folder
from kernrec.util.human import counted

_CHECKED = "checked"
"""Name of the folder for checked rows, in the folder of a GPU's segments."""


def push(
    place: Place,
    database: Path,
    selection: Selection,
    signer: Signer,
    licence: str | None = None,
    *,
    agree: Callable[[Sequence[Outgoing], int], bool],
) -> tuple[int, int] | None:
    """Push measurements that a shared folder or server lacks. Also push the user's new withdrawals.

    Args:
        selection: Measurements to push.
        signer: Owner of the rows, who signs the bundles.
        licence: License of the rows. By default, `manifest.LICENCE`.
        agree: Function that receives the outgoing rows of each GPU, and the number of measurements to withdraw. If it
            returns False, nothing is pushed.

    Returns:
        (number of pushed measurements, number of withdrawn measurements), or None if nothing was pushed.

    Raises:
        KernrecError: The shared folder or server cannot be reached or written, or a row is not valid.
        UsageError: The database has no selected measurements, and nothing is withdrawn.
    """
    names = writable_names(place)
    with working_on(path := paths.pulled()), scratch_folder() as temporary:
        # An earlier push may have been killed before it recorded its bundles in the database of pulled rows.
        take_new(place, path, {signer.key}, names)
        with Database.open(path, read_only=False, create=True):
            pass
        with Database.open(database) as opened:
            keep_fresh(opened, selection, _stale(path, names, temporary))
            fresh = replace(selection, fresh=True)
            gpus = [gpu for (gpu,) in opened.query(f"SELECT DISTINCT gpu {fresh.source()} ORDER BY 1")]
            leaving = [_leaving(opened, replace(fresh, gpu=gpu), database, temporary / gpu, licence) for gpu in gpus]
            gone = withdrawn_here(path, opened, signer, [name for name in names if BUNDLE.fullmatch(name)])
            if not (leaving or gone or opened.query(f"SELECT 1 {selection.source()} LIMIT 1")):
                on_gpu = f" on {selection.gpu}" if selection.gpu else ""
                raise UsageError(f"{database} has no measurements{on_gpu} to share")
        count = sum(len(rows) for reason in gone.values() for rows in reason.values())
        if not ((leaving or count) and agree(leaving, count)):
            if not (leaving or count):
                write_list(place)
            return None
        for reason, sessions in gone.items():
            publish(place, path, sessions, signer, reason)
        for each in leaving:
            _write(place, path, each, signer, temporary)
        write_list(place)
        settle(path)
        return sum(each.measurements for each in leaving), count


def _stale(path: Path, names: Sequence[str], folder: Path) -> Path:
    """Write a Parquet file with the `likeness_key` of each measurement that need not be pushed."""
    listed = ", ".join(quoted(name) for name in names if BUNDLE.fullmatch(name)) or "NULL"
    there = f"SELECT measurement_id FROM db.merged WHERE bundle IN ({listed})"
    with Database.open(path) as pulled:
        pushed = f"SELECT {likeness_key(pulled)} AS likeness FROM db.measurement WHERE measurement_id IN ({there})"
        return pulled.export(f"{pushed} UNION SELECT likeness FROM db.withdrawn", folder)[0]


def _leaving(database: Database, selection: Selection, path: Path, folder: Path, licence: str | None) -> Outgoing:
    folder.mkdir()
    leaving = outgoing(database, selection, secret_of(path), folder, licence)
    if leaving.manifest.size > LARGEST_BUNDLE:
        raise UsageError(
            f"{leaving.measurements} measurements of a {selection.gpu} take more than {LARGEST_BUNDLE} bytes; share"
            " parts of them with `kernrec db export --kernel`"
        )
    (checked := folder / _CHECKED).mkdir()
    # Check the rows in the same way as the people who receive them.
    segments = leaving.manifest.segments
    files = {table: [leaving.files[each.name] for each in segments if each.table == table] for table in TABLES}
    checked_segments([files], checked, str(path))
    return leaving


def _write(place: Place, path: Path, leaving: Outgoing, signer: Signer, folder: Path) -> None:
    (gpu,) = leaving.manifest.provenance["gpus"]
    file = folder / f"{gpu}.zip"
    manifest = write_bundle(ZipFile(file), leaving.manifest, leaving.files, signer)
    place.write(name := bundle_name(manifest), file)
    add_bundles(path, {name: Bundle(place, manifest, manifest.to_bytes())}, folder / gpu / _CHECKED)


def write_list(place: Place, without: Mapping[str, str] | None = None) -> int:
    """Write the index of a place (shared folder or server), which lists the names of bundles and withdrawals.

    Omit the names in `without`. Return the number of listed names.
    """
    while True:  # Write the index again if files were added or removed meanwhile.
        names = _listed(place, without or {})
        write_content(place, INDEX, json.dumps({"names": names}, indent=0).encode())
        if _listed(place, without or {}) == names:
            return len(names)


def _listed(place: Place, without: Mapping[str, str]) -> list[str]:
    return [n for n in place.names() if n not in without and (BUNDLE.fullmatch(n) or WITHDRAWAL.fullmatch(n))]


@dataclass
class PlaceReport:
    bundles: int = 0
    bad: dict[str, str] = field(default_factory=dict)
    """Reasons for refusing files, keyed by file name."""
    rows: list[dict[str, object]] = field(default_factory=list)
    """Summary of the rows in the valid bundles (`coverage.contributed`)."""


def check_place(place: Place) -> PlaceReport:
    """Check every file in a folder or archive of shared measurements. Raise `KernrecError` if `place` is unreadable."""
    names = place.names()
    with scratch_folder() as scratch:
        path = scratch / "pulled.duckdb"
        pulled = take_new(place, path, names=names)
        report = PlaceReport(bad=_refused(place, pulled))
        if not path.exists():
            return report
        with Database.open(path) as database:
            report.bad |= _again(database)
            rows = database.query("SELECT name FROM db.bundle WHERE measurements > 0")
            report.bundles = sum(name not in report.bad for (name,) in rows)
            report.rows = contributed(database)
    return report


def _refused(place: Place, pulled: PullReport) -> dict[str, str]:
    bad = dict(pulled.refused)
    for line in pulled.missing:
        bad[line.rpartition(" has no ")[2]] = "it is listed but missing"
    if pulled.unknown:
        bad["manifests"] = "they are not signed"
    if isinstance(place, Folder):
        for file in files_below(place.path):
            name = file.relative_to(place.path).as_posix()
            plain = file.suffix == ".txt" or file.name == "README.md" or file.parent == place.path
            if not (plain or BUNDLE.fullmatch(name) or WITHDRAWAL.fullmatch(name)):
                bad[name] = "its name is not <gpu>/<day>-<8 digits of the key>-<12 digits of its hash>.zip"
    return bad


def _again(database: Database) -> dict[str, str]:
    numbered = "SELECT name, row_number() OVER (ORDER BY created_at, name) AS number FROM db.bundle"
    shared = f"SELECT measurement_id, name, number FROM db.merged JOIN ({numbered}) AS bundle ON bundle = name"
    query = f"""
        WITH row AS MATERIALIZED (
            SELECT {likeness_key(database)} AS likeness, name, number
            FROM db.measurement JOIN ({shared}) USING (measurement_id)
        )
        SELECT again.name, first.name, count(*) FROM row AS first JOIN row AS again USING (likeness)
        WHERE first.number < again.number GROUP BY 1, 2 ORDER BY 1, 3, 2 DESC
    """
    return {
        name: f"{counted(count, 'row')} of it {'is' if count == 1 else 'are'} in {first} already"
        for name, first, count in database.query(query)
    }
