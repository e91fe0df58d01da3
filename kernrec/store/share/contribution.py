"""Contributions: what `kernrec contribute` measured, as one signed bundle with the name that it has at a place.

Which sessions were measured for a contribution, and are in no bundle yet, is in a file beside the database, so that a
run that was interrupted loses nothing: the next bundle has its rows.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from kernrec.errors import KernrecError, UsageError, file_errors
from kernrec.kernel.fixed_part import fixed_part
from kernrec.store.card_scales import LEAST_CONFIGS
from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.keys import Signer
from kernrec.store.measurement_log import evidence
from kernrec.store.reader import check_own_segments
from kernrec.store.share.bundle import write_bundle
from kernrec.store.share.manifest import LICENCE, TABLES, bundle_name
from kernrec.store.share.outgoing import Outgoing, Selection, outgoing
from kernrec.store.share.place import ZipFile
from kernrec.store.share.privacy import secret_of
from kernrec.store.stack import pulled_database
from kernrec.util.atomic_write import write_whole
from kernrec.util.input_file import read_input
from kernrec.util.scratch import scratch_folder

MOST_BYTES = 300_000
"""Of the bundle of ten minutes: a larger one is written, and said to be."""
_LARGEST_LIST = 16 << 20


@dataclass(frozen=True)
class Contribution:
    """A bundle that was written, and what is in it."""

    path: Path
    size: int
    """Bytes."""
    gpu: str
    leaving: Outgoing
    replayed: bool
    """Whether rows of it repeat a recording, which no place takes."""
    kernels: tuple[Mapping[str, object], ...]
    """By op and kernel: `problems`, `configs`, `rows`, `energies` (rows with an energy) and `failed`."""
    fixed: tuple[Mapping[str, object], ...]
    """Of the fixed part: `bound`, `kernel`, `problem`, `latency_s` and `energy_j`, medians; None where not measured.
    `others_s`: the latency of others on the same card; None where no database here has rows of them."""
    drivers: tuple[str, ...]
    protocols: tuple[int, ...]
    """Versions of the protocol."""


def pending_file(database: Path) -> Path:
    """Where the sessions are listed that are in no bundle yet."""
    return database.with_name(f"{database.name}.contribution.json")


def pending_sessions(database: Path) -> tuple[str, ...]:
    """The sessions that were measured for a contribution and are in no bundle yet.

    Raises:
        UsageError: the file that lists them holds something else.
    """
    path = pending_file(database)
    if not path.exists():
        return ()
    try:
        with file_errors(path, "read"):
            listed = json.loads(read_input(path, _LARGEST_LIST))
    except ValueError:
        listed = None
    if isinstance(listed, dict) and isinstance(written := listed.get("bundle"), str):
        listed = listed.get("left" if Path(written).exists() else "sessions")
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise UsageError(f"{path} is not a list of sessions; delete it to begin a new contribution")
    return tuple(listed)


def add_pending(database: Path, session: str) -> None:
    """List a session before anything is measured in it."""
    _write_pending(database, [*pending_sessions(database), session])


def _write_pending(database: Path, sessions: Sequence[str] | Mapping[str, object]) -> None:
    """List sessions; while a bundle of them is about to appear, both lists, and the bundle whose being there decides
    which holds: so that a run that is killed then puts no row into two bundles."""
    path = pending_file(database)
    with file_errors(path, "written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(sessions).encode(), shared=True)


def pending_gpus(database: Path) -> dict[str, int]:
    """By GPU, how many rows of the listed sessions are in no bundle yet."""
    if not database.exists():
        return {}
    selection = Selection(sessions=pending_sessions(database))
    with Database.open(database) as opened:
        return dict(opened.query(f"SELECT gpu, count(*) {selection.source()} GROUP BY 1 ORDER BY 1"))


def write_contribution(database: Path, gpu: str, signer: Signer, folder: Path) -> Contribution:
    """Write the bundle of a GPU's rows that are in none yet; afterwards its sessions are listed no more.

    Args:
        database: one's own.
        gpu: name in the catalog.
        signer: whose rows they become.
        folder: a place, in which the bundle gets the name that it has there.

    Raises:
        UsageError: there is a file of that name already.
        KernrecError: there are no such rows, or others would refuse them.
    """
    selection = Selection(gpu=gpu, sessions=pending_sessions(database), retractions=False)
    with Database.open(database) as opened, scratch_folder() as scratch:
        leaving = outgoing(opened, selection, secret_of(database), scratch, LICENCE)
        if not leaving.measurements:
            raise KernrecError(f"{database} has no unbundled measurements of a {gpu}")
        check_own_segments(leaving.by_table(TABLES), str(database))  # what others would refuse stays here
        leaving = replace(leaving, manifest=replace(leaving.manifest, owner=signer.key))
        target = folder / bundle_name(leaving.manifest)
        written = _contents(opened, selection, target, gpu, leaving)
        if target.exists():
            raise UsageError(f"{target} exists already; name a new file")
        others = opened.query(
            f"SELECT DISTINCT session {Selection(sessions=selection.sessions).source()} AND gpu <> {quoted(gpu)}"
        )
        left = sorted(session for (session,) in others)
        with file_errors(target, "written"):
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f".{target.name}.{os.getpid()}.part")
            try:
                write_bundle(ZipFile(part), leaving.manifest, leaving.files, signer)
                size = part.stat().st_size
                both = {"sessions": list(selection.sessions or ()), "left": left, "bundle": str(target.absolute())}
                _write_pending(database, both)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
    _write_pending(database, left)
    return replace(written, size=size)


def _contents(database: Database, selection: Selection, path: Path, gpu: str, leaving: Outgoing) -> Contribution:
    source = selection.source()
    names = ("op", "kernel", "problems", "configs", "rows", "energies", "failed")
    kernels = database.query(
        "SELECT op, kernel, count(DISTINCT problem_id), count(DISTINCT (problem_id, config_id)), count(*),"
        f" count(energy_j), count_if(outcome <> 'ok') {source} GROUP BY ALL ORDER BY ALL"
    )
    (((replayed, drivers, protocols)),) = database.query(
        "SELECT coalesce(bool_or(replayed), false), list_sort(list(DISTINCT driver) FILTER (driver IS NOT NULL)),"
        f" list_sort(list(DISTINCT protocol_version)) {source}"
    )
    return Contribution(
        path,
        0,
        gpu,
        leaving,
        bool(replayed),
        tuple(dict(zip(names, row, strict=True)) for row in kernels),
        tuple(_fixed_rows(database, source, gpu)),
        tuple(drivers or ()),
        tuple(protocols or ()),
    )


def _fixed_rows(database: Database, source: str, gpu: str) -> list[dict[str, object]]:
    costs, others = fixed_costs(database, source), _others_latencies(database, gpu)
    rows: list[dict[str, object]] = []
    for each in fixed_part():
        common = {"bound": each.bound, "kernel": each.kernel_name, "problem": each.problem.key}
        latency_s, energy_j = costs.get(each.bound, (None, None))
        rows.append({**common, "latency_s": latency_s, "energy_j": energy_j, "others_s": others.get(each.bound)})
    return rows


def _others_latencies(database: Database, gpu: str) -> dict[str, float]:
    parts = fixed_part()
    keys = sorted({each.problem.key for each in parts})
    logs = [database.log(gpu, keys)]
    if path := pulled_database():
        with Database.open(path) as pulled:
            logs.append(pulled.log(gpu, keys, signed=True))
    latencies = {}
    for each in parts:
        for answer in evidence(logs, [each.kernel_name], each.problem.key).measured:
            if answer.others_s is not None and answer.config == each.config and answer.power_limit_w is None:
                latencies[each.bound] = answer.others_s
    return latencies


def ratio_to_others(fixed: Sequence[Mapping[str, object]]) -> tuple[float, int] | None:
    """The median of a card's latencies over those of others in the fixed part, and of how many configs; None where they
    cannot be compared."""
    ratios = [
        row["latency_s"] / row["others_s"]
        for row in fixed
        if isinstance(row["latency_s"], float) and isinstance(row["others_s"], float)
    ]
    return (median(ratios), len(ratios)) if len(ratios) >= LEAST_CONFIGS else None


def fixed_costs(database: Database, source: str) -> dict[str, tuple[float | None, float | None]]:
    """By bound of the fixed part, the medians of latency and energy of selected rows (`Selection.source`)."""
    costs = {}
    for each in fixed_part():
        config = " AND ".join(
            f"CAST(json_extract(tunables, '$.{name}') AS BIGINT) = {value}" for name, value in each.config.items()
        )
        condition = (
            f"AND outcome = 'ok' AND kernel = {quoted(each.kernel_name)} AND problem_id IN (SELECT problem_id FROM"
            f" db.problem WHERE key = {quoted(each.problem.key)})"
            f" AND config_id IN (SELECT config_id FROM db.config WHERE {config})"
        )
        ((count, latency_s, energy_j),) = database.query(
            f"SELECT count(*), median(latency_s), median(energy_j) {source} {condition}"
        )
        if count:
            costs[each.bound] = latency_s, energy_j
    return costs
