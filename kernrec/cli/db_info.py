"""`kernrec db info`: what a database holds, and what was pulled from remotes."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kernrec import paths
from kernrec.cli.format import print_notes
from kernrec.cli.table import print_table
from kernrec.errors import UsageError
from kernrec.util.human import counted


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    shipped: Annotated[bool, typer.Option("--shipped", help="Show the recorded rows that ship instead.")] = False,
    db: Annotated[Path | None, typer.Option("--db", help="Database. Default: your own, and what was pulled.")] = None,
) -> None:
    """Show the contents of a database: measurements by GPU, op, kernel and outcome, schema and content hash.

    Models and calibrations beside it are listed too. --shipped lists the recorded rows that ship, by op and source.
    """
    if shipped:
        if db is not None:
            raise UsageError(f"--shipped is about what ships with kernrec, not about --db {db}; give one of them")
        _print_shipped(as_json)
        return
    from kernrec.measure.campaign.journal import journal_path, waiting_measurements
    from kernrec.recommender.estimate.model_store import stored_models
    from kernrec.store import Database
    from kernrec.store.coverage import tally
    from kernrec.store.remotes import pulled_databases
    from kernrec.store.retractions import retracted

    path, pulled = db or paths.user_database(), {}
    if db is None and paths.remotes().is_dir():
        for file, name in pulled_databases().items():
            with Database.open(file, check_rows=False) as database:
                pulled[name] = tally(database)
    if pulled and not path.exists():
        print_notes([f"there is no database of your own ({path}); these are the rows that were pulled"])
        _print_pulled(pulled, as_json)
        return
    with Database.open(path, check_rows=False) as database:
        measurements, counts = tally(database), database.counts()
        schema, content, conflicts = database.schema, database.content_hash(), len(database.conflicts())
        gone = retracted(database)
    counts["gpu"] = len({row["gpu"] for row in measurements})  # catalog entries are not copied into a database
    learned, wrong = stored_models(path.parent / "models")
    print_notes(wrong)
    if as_json:
        about = {"path": str(path), "schema": schema, "content_hash": content, "rows": counts, "conflicts": conflicts}
        about |= {"retracted": gone, "measurements": measurements, "learned": learned, "pulled": pulled}
        print(json.dumps(about, indent=2))
        return
    print(f"{path}, schema {schema}, content {content}")
    print(", ".join(counted(count, table) for table, count in counts.items()))
    notes = [conflicting(conflicts)] if conflicts else []
    if gone:
        notes.append(f"retracted, and answering no more (`kernrec db log`): {counted(gone, 'measurement')}")
    waiting = waiting_measurements(path)
    when = "the next `kernrec collect` stores" if waiting.holder is None else "a running collector will store"
    if waiting.measurements:
        notes.append(f"{journal_path(path)} has {counted(waiting.measurements, 'measurement')}, which {when}")
    print_notes(notes)
    if measurements:
        _print_tally(None, measurements)
    _print_pulled(pulled, as_json)
    if learned:
        columns: list[tuple[str, str]] = [(name, "left") for name in learned[0]]
        print_table("learned from measurements", columns, [[str(value) for value in row.values()] for row in learned])


def _print_pulled(pulled: dict[str, list[dict[str, Any]]], as_json: bool) -> None:
    """Print how many rows were pulled from each remote, with a table for each."""
    if as_json:
        print(json.dumps({"pulled": pulled}, indent=2))
        return
    for name, rows in pulled.items():
        measurements, gpus = sum(row["measurements"] for row in rows), len({row["gpu"] for row in rows})
        title = f"{name}, pulled or pushed: {counted(measurements, 'measurement')} of {counted(gpus, 'GPU')}"
        print(title) if not rows else _print_tally(title, rows)


def _print_tally(title: str | None, rows: list[dict[str, Any]]) -> None:
    # Most databases have neither replayed rows nor parts of cards.
    first, rare = rows[0], ("replayed", "mig")
    names = [name for name in first if name not in rare or any(row[name] for row in rows)]
    shown = [(name, "left" if isinstance(first[name], str) else "right") for name in names]
    print_table(title, shown, [[str(row[name]) for name in names] for row in rows])


def _print_shipped(as_json: bool) -> None:
    from kernrec.store.recorded import contents

    if as_json:
        print(json.dumps(contents(), indent=2))
        return
    for op, about in contents().items():
        left_out = ", ".join(f"{count} {reason}" for reason, count in about["left_out"].items())
        print(f"{op}: {about['rows']} rows, {about['with_power']} with power; {', '.join(about['dtypes'])}")
        print(f"  cards: {', '.join(about['gpus'])}")
        print(f"  stacks: {', '.join(about['stacks'])}")
        for source in about["sources"]:
            print(f"  source: {source}")
        if left_out:
            print(f"  left out: {left_out}")


def conflicting(count: int) -> str:
    """Say how many measurements contradict each other."""
    return (
        f"{count} measurements contradict each other: they name the same moment of the same session and differ in "
        "their values; none of them answers"
    )
