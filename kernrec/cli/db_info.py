"""`kernrec db info`: show the contents of a database, rows from other people, and measurements per GPU."""

from pathlib import Path
from typing import Annotated, Any

from kernrec.cli import options
from kernrec.cli.options import option
from kernrec.cli.output import AsJson, print_json, print_notes, print_rows
from kernrec.cli.progress import Steps
from kernrec.errors import UsageError
from kernrec.util.human import counted

_SHIPPED = Path("shipped")
"""Value of --db that selects the measurements that ship with kernrec."""


class InfoOptions(options.Options):
    coverage: Annotated[bool, option("Show how much is measured on each GPU.", "--coverage")] = False
    as_json: AsJson = False


@options.takes(InfoOptions)
def info(wanted: InfoOptions) -> None:
    """Show the contents of a database: measurements by GPU, op, kernel and outcome, schema and content hash.

    The models beside the database and the pulled measurements with their contributors are listed, too. --db shipped
    shows the measurements that ship with kernrec.

    --coverage shows how many layers of the standard workloads are measured on each GPU, and for which architectures and
    ops measurements are missing.
    """
    if wanted.db == _SHIPPED and wanted.coverage:
        raise UsageError("--coverage counts all databases; omit --db shipped")
    if wanted.db == _SHIPPED:
        _show_shipped(wanted.as_json)
    elif wanted.coverage:
        _show_coverage(wanted.db, wanted.as_json)
    else:
        _show_database(wanted.database, wanted.db is None, wanted.as_json)


def _show_database(path: Path, others: bool, as_json: bool) -> None:
    pulled = _pulled() if others else {"pulled": [], "bundles": []}
    if pulled["pulled"] and not path.exists():
        print_notes([f"you have no database yet ({path}); these are pulled rows"])
        about: dict[str, Any] = {}
    else:
        about = _contents(path)
        print_notes(about.pop("notes"))
    if as_json:
        print_json(about | pulled)
        return
    if about:
        print(f"{path}, schema {about['schema']}, content {about['content_hash']}")
        print(", ".join(counted(count, table) for table, count in about["rows"].items()))
    rows = about.get("measurements", [])
    # Most databases have neither replayed measurements nor MIG slices, so show these columns only if needed.
    rare = [name for name in ("replayed", "mig") if not any(row[name] for row in rows)]
    print_rows(None, [{name: row[name] for name in row if name not in rare} for row in rows])
    print_rows("pulled", pulled["pulled"], CONTRIBUTED)
    signers = ("signer", "bundles", "measurements", "first", "last", "licences")
    print_rows("pulled or pushed, by signer", pulled["bundles"], signers)
    print_rows("learned from measurements", about.get("learned", []))


def _contents(path: Path) -> dict[str, Any]:
    """Return the contents of a database in JSON form, with notes."""
    from kernrec.measure.campaign.journal import journal_path, waiting_measurements
    from kernrec.recommender.estimate.model_store import stored_models
    from kernrec.store import Database
    from kernrec.store.coverage import tally
    from kernrec.store.share.withdraw import retracted

    with Database.open(path, check_rows=False) as database:
        measurements, counts = tally(database), database.counts()
        schema, content, conflicts = database.schema, database.content_hash(), len(database.conflicts())
        gone = retracted(database)
    counts["gpu"] = len({row["gpu"] for row in measurements})  # Count GPUs with measurements.
    learned, wrong = stored_models(path.parent / "models")
    notes = [*wrong, *([conflicting(conflicts)] if conflicts else [])]
    if gone:
        notes.append(f"withdrawn, no longer used: {counted(gone, 'measurement')}")
    try:
        waiting = waiting_measurements(path)
        if waiting.measurements:
            when = "the next `kernrec collect` stores" if waiting.holder is None else "a running collector will store"
            notes.append(f"{journal_path(path)} has {counted(waiting.measurements, 'measurement')}, which {when}")
    except OSError as error:
        notes.append(f"{journal_path(path)} cannot be read: {error.strerror}")
    about = {"path": str(path), "schema": schema, "content_hash": content, "rows": counts, "conflicts": conflicts}
    return about | {"withdrawn": gone, "measurements": measurements, "learned": learned, "notes": notes}


def _pulled() -> dict[str, list[dict[str, Any]]]:
    from kernrec.store import Database
    from kernrec.store.coverage import contributed
    from kernrec.store.keys import signer_name
    from kernrec.store.share.pulled import pulled_bundles
    from kernrec.store.stack import pulled_database

    if not (file := pulled_database()):
        return {"pulled": [], "bundles": []}
    with Database.open(file, check_rows=False) as database:
        measurements = contributed(database)
    names = ("signer", "bundles", "measurements", "licences", "first", "last")
    rows = [dict(zip(names, values, strict=True)) for values in pulled_bundles(file)]
    bundles = [row | {"signer": signer_name(row["signer"]), "key": row["signer"]} for row in rows]
    return {"pulled": measurements, "bundles": bundles}


CONTRIBUTED = ("gpu", "op", "kernel", "problems", "configs", "rows", "energies", "signers")
"""Columns of the rows from `kernrec.store.coverage.contributed`."""


def _show_shipped(as_json: bool) -> None:
    from kernrec.store.recorded import contents

    if as_json:
        print_json(contents())
        return
    for op, about in contents().items():
        print(f"{op}: {about['rows']} rows, {about['with_power']} with power; {', '.join(about['dtypes'])}")
        print(f"  GPUs: {', '.join(about['gpus'])}")
        print(f"  backends: {', '.join(about['backends'])}")
        for source in about["sources"]:
            print(f"  source: {source}")
        if about["left_out"]:
            print("  left out or changed: " + ", ".join(f"{n} {reason}" for reason, n in about["left_out"].items()))


def conflicting(count: int) -> str:
    """Return a note on `count` measurements that contradict each other."""
    return (
        f"{count} measurements contradict each other: same session and time, but different values; none of them is used"
    )


def _show_coverage(database: Path | None, as_json: bool) -> None:
    from dataclasses import asdict

    from kernrec.measure.gpu_coverage import gpus_coverage
    from kernrec.store import Stack

    with Steps("counting what is measured"):
        stack = Stack(None if database is None else [database])
        gpus = gpus_coverage(stack)
    if as_json:
        print_json({"gpus": [asdict(gpu) for gpu in gpus]})
        return
    names = ("measured", "recorded", "layers", "configs", "energies")
    sums = [(gpu, {name: sum(getattr(op, name) for op in gpu.ops.values()) for name in names}) for gpu in gpus]
    rows = [
        {"gpu": gpu.gpu, **counts, "last measured": gpu.last_measured or "never"}
        for gpu, counts in sums
        if counts["configs"] or counts["recorded"]
    ]
    print_rows("layers of the standard workloads", rows)
    if others := len(gpus) - len(rows):
        print_notes(
            [f"{counted(others, 'GPU')} more have recorded rows of other problems (`kernrec db info --db shipped`)"]
        )
