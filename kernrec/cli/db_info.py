"""`kernrec db info`: show the contents of a database, the pulled rows, and the number of measurements per GPU."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kernrec import paths
from kernrec.cli import options
from kernrec.cli.options import option
from kernrec.cli.output import AsJson, print_json, print_notes, print_rows, print_table
from kernrec.cli.progress import Steps
from kernrec.errors import UsageError
from kernrec.util.human import counted

if TYPE_CHECKING:
    from kernrec.measure.gpu_coverage import GpuCoverage

_SHIPPED = Path("shipped")
"""Value of --db that selects the published measurements that ship with kernrec."""


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
    if wanted.db == _SHIPPED:
        if wanted.coverage:
            raise UsageError("--coverage counts all databases; omit --db shipped")
        _print_shipped(wanted.as_json)
    elif wanted.coverage:
        _show_coverage(wanted)
    else:
        _show_database(wanted.db or paths.user_database(), wanted.db is None, wanted.as_json)


def _show_database(path: Path, others: bool, as_json: bool) -> None:
    """Show the contents of a database. If `others` is true, include the pulled measurements."""
    from kernrec.measure.campaign.journal import Waiting, journal_path, waiting_measurements
    from kernrec.recommender.estimate.model_store import stored_models
    from kernrec.store import Database
    from kernrec.store.coverage import contributed, tally
    from kernrec.store.share.withdraw import retracted
    from kernrec.store.stack import pulled_database

    pulled: list[dict[str, Any]] = []
    bundles: list[dict[str, Any]] = []
    if others and (file := pulled_database()):
        with Database.open(file, check_rows=False) as database:
            pulled = contributed(database)
        bundles = _pulled_bundles(file)
    if pulled and not path.exists():
        print_notes([f"you have no database yet ({path}); these are pulled rows"])
        if as_json:
            print_json({"pulled": pulled, "bundles": bundles})
        else:
            _print_pulled(pulled, bundles)
        return
    with Database.open(path, check_rows=False) as database:
        measurements, counts = tally(database), database.counts()
        schema, content, conflicts = database.schema, database.content_hash(), len(database.conflicts())
        gone = retracted(database)
    counts["gpu"] = len({row["gpu"] for row in measurements})  # Count GPUs with measurements.
    learned, wrong = stored_models(path.parent / "models")
    print_notes(wrong)
    if as_json:
        about = {"path": str(path), "schema": schema, "content_hash": content, "rows": counts, "conflicts": conflicts}
        about |= {"withdrawn": gone, "measurements": measurements, "learned": learned}
        print_json(about | {"pulled": pulled, "bundles": bundles})
        return
    print(f"{path}, schema {schema}, content {content}")
    print(", ".join(counted(count, table) for table, count in counts.items()))
    notes = [conflicting(conflicts)] if conflicts else []
    if gone:
        notes.append(f"withdrawn, no longer used: {counted(gone, 'measurement')}")
    try:
        waiting = waiting_measurements(path)
    except OSError as error:
        waiting = Waiting(0, None)
        notes.append(f"{journal_path(path)} cannot be read: {error.strerror}")
    when = "the next `kernrec collect` stores" if waiting.holder is None else "a running collector will store"
    if waiting.measurements:
        notes.append(f"{journal_path(path)} has {counted(waiting.measurements, 'measurement')}, which {when}")
    print_notes(notes)
    if measurements:
        _print_tally(measurements)
    if pulled:
        _print_pulled(pulled, bundles)
    if learned:
        print_rows("learned from measurements", learned)


def _pulled_bundles(path: Path) -> list[dict[str, Any]]:
    from kernrec.store.keys import signer_name
    from kernrec.store.share.pulled import pulled_bundles

    names = ("signer", "bundles", "measurements", "licences", "first", "last")
    rows = [dict(zip(names, values, strict=True)) for values in pulled_bundles(path)]
    return [row | {"signer": signer_name(row["signer"]), "key": row["signer"]} for row in rows]


def _print_pulled(pulled: list[dict[str, Any]], bundles: list[dict[str, Any]]) -> None:
    print_contributed("pulled", pulled)
    if bundles:
        names = ("signer", "bundles", "measurements", "first", "last", "licences")
        print_rows("pulled or pushed, by signer", bundles, names)


def print_contributed(title: str | None, rows: Sequence[Mapping[str, object]]) -> None:
    """Print a table of contributed measurements. `kernrec.store.coverage.contributed` returns the rows."""
    print_rows(title, rows, ("gpu", "op", "kernel", "problems", "configs", "rows", "energies", "signers"))


def _print_tally(rows: list[dict[str, Any]]) -> None:
    # Most databases have neither replayed measurements nor MIG slices, so show these columns only if needed.
    rare = ("replayed", "mig")
    print_rows(None, rows, [name for name in rows[0] if name not in rare or any(row[name] for row in rows)])


def _print_shipped(as_json: bool) -> None:
    from kernrec.store.recorded import contents

    if as_json:
        print_json(contents())
        return
    for op, about in contents().items():
        left_out = ", ".join(f"{count} {reason}" for reason, count in about["left_out"].items())
        print(f"{op}: {about['rows']} rows, {about['with_power']} with power; {', '.join(about['dtypes'])}")
        print(f"  GPUs: {', '.join(about['gpus'])}")
        print(f"  backends: {', '.join(about['backends'])}")
        for source in about["sources"]:
            print(f"  source: {source}")
        if left_out:
            print(f"  left out or changed: {left_out}")


def conflicting(count: int) -> str:
    """Return a note on the number of measurements that contradict each other."""
    return (
        f"{count} measurements contradict each other: same session and time, but different values; none of them is used"
    )


def _show_coverage(wanted: InfoOptions) -> None:
    from dataclasses import asdict

    from kernrec.measure.gpu_coverage import gpus_coverage
    from kernrec.store import Stack

    with Steps("counting what is measured"):
        stack = Stack(None if wanted.db is None else [wanted.db])
        gpus = gpus_coverage(stack)
    if wanted.as_json:
        print_json({"gpus": [asdict(gpu) for gpu in gpus]})
        return
    _print_gpus(gpus)


def _print_gpus(gpus: "list[GpuCoverage]") -> None:
    names = ("measured", "recorded", "layers", "configs", "energies")
    cells = []
    for gpu in gpus:
        sums = {name: sum(getattr(op, name) for op in gpu.ops.values()) for name in names}
        if sums["configs"] or sums["recorded"]:
            cells.append([gpu.gpu, *(f"{value:,}" for value in sums.values()), gpu.last_measured or "never"])
    columns = [("gpu", "left"), *((name, "right") for name in names), ("last measured", "left")]
    print_table("layers of the standard workloads", columns, cells)
    if others := len(gpus) - len(cells):
        print_notes(
            [f"{counted(others, 'GPU')} more have recorded rows of other problems (`kernrec db info --db shipped`)"]
        )
