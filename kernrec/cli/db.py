"""`kernrec db`: what a database holds, results of other tuners in and out, merging, checking."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.cli.quantity import human
from kernrec.cli.table import print_table
from kernrec.errors import KernrecError, UsageError

if TYPE_CHECKING:
    from kernrec.op import Problem

app = typer.Typer(help="Look into databases, import, export and merge them.", no_args_is_help=True)

Path_ = Annotated[Path | None, typer.Option("--db", help="Database; your own by default.")]
Op = Annotated[str, typer.Option("--op", help="Operator that was run: matmul, conv2d, ... (`kernrec ops`).")]
Shape = Annotated[str | None, typer.Option(help="Dimensions, m=4096,n=4096,k=4096.")]
Dtype = Annotated[str | None, typer.Option(help="Data type of the tensors; the op's first by default.")]
Layout = Annotated[str | None, typer.Option(help="Tensor layout; the op's first by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A T4 file or Kernel Tuner cache, .json or .json.gz.")],
    op: Op,
    shape: Annotated[str, typer.Option(help="Dimensions, m=4096,n=4096,k=4096.")],
    gpu: Annotated[str | None, typer.Option("--gpu", help="GPU it was measured on, where the file is silent.")] = None,
    kernel: Annotated[str | None, typer.Option(help="Name of the kernel, where the file is silent.")] = None,
    dtype: Dtype = None,
    layout: Layout = None,
    db: Path_ = None,
) -> None:
    """Add what another tuner measured to a database, failures included; units are converted."""
    from kernrec.interop.import_export import import_results
    from kernrec.store import Database

    problem = _problem(op, shape, dtype, layout)
    path = db or paths.user_database()
    existed = path.exists()
    try:
        with Database.open(path, read_only=False, create=True) as database:
            done = import_results(database, file, problem, gpu, kernel)
    except KernrecError:
        if not existed:  # a file that cannot be taken in makes no database
            path.unlink(missing_ok=True)
        raise
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(done.outcomes.items()))
    best = "" if done.best_s is None else f", best {human(done.best_s, 's')}"
    print(f"{done.kernel} for {problem.key} on {done.gpu.title}: {done.results} results ({counts}){best}")
    if done.added < done.results:
        _note(f"{done.results - done.added} of them were there already")
    if done.dropped:
        _note(f"{file} is cut short: {done.dropped} incomplete entry at its end was dropped")


@app.command("export")
def export(
    op: Op,
    gpu: Annotated[str, typer.Option("--gpu", help="GPU that was measured (`kernrec gpus`).")],
    format: Annotated[str, typer.Option(help="Format: t4.")] = "t4",
    shape: Shape = None,
    kernel: Annotated[str | None, typer.Option(help="Kernel, where several were measured.")] = None,
    dtype: Dtype = None,
    layout: Layout = None,
    db: Path_ = None,
) -> None:
    """Print the measurements of one kernel, problem and GPU in a format that other tuners read."""
    from kernrec.gpu import find_gpu
    from kernrec.interop.import_export import export_t4
    from kernrec.op import find_op
    from kernrec.store import Database

    if format != "t4":
        raise UsageError(f"--format {format!r}: only t4 is known")
    if shape is None and (dtype or layout):
        raise UsageError("--dtype and --layout are those of a --shape, which was not given")
    problems = None if shape is None else [_problem(op, shape, dtype, layout)]
    card, name = find_gpu(gpu), find_op(op).name
    with Database.open(db or paths.user_database()) as database:
        done = export_t4(database, card, problems, name, kernel)
    print(done.text)
    if done.left_out:
        _note(f"{done.left_out} measurements were left out: quarantined, or of an older source of the kernel")


@app.command("info")
def info(as_json: AsJson = False, db: Path_ = None) -> None:
    """Show what a database holds: measurements by GPU, op, kernel and outcome, schema and content hash.

    Models and calibrations that lie beside it are listed too.
    """
    from kernrec.cli.format import print_notes
    from kernrec.recommender.estimate.model_store import what_was_learned
    from kernrec.store import Database

    path = db or paths.user_database()
    with Database.open(path) as database:
        tally, counts = database.tally(), database.counts()
        schema, content = database.schema, database.content_hash()
    learned, wrong = what_was_learned(path.parent / "models")
    print_notes(wrong)
    if as_json:
        about = {"path": str(path), "schema": schema, "content_hash": content, "rows": counts}
        print(json.dumps(about | {"measurements": tally, "learned": learned}, indent=2))
        return
    print(f"{path}, schema {schema}, content {content}")
    print(", ".join(f"{count} {table}" for table, count in counts.items()))
    if tally:
        shown: list[tuple[str, str]] = [
            (name, "left" if isinstance(value, str) else "right") for name, value in tally[0].items()
        ]
        print_table(None, shown, [[str(value) for value in row.values()] for row in tally])
    if learned:
        columns: list[tuple[str, str]] = [(name, "left") for name in learned[0]]
        print_table("learned from measurements", columns, [[str(value) for value in row.values()] for row in learned])


@app.command("merge")
def merge(
    others: Annotated[list[Path], typer.Argument(help="Databases to take rows from; they stay as they are.")],
    db: Path_ = None,
) -> None:
    """Add every row of other databases that is not in this one; the order does not matter, twice is as once."""
    from kernrec.store import Database

    path = db or paths.user_database()
    for other in others:  # before anything is made or changed
        if other.resolve() == path.resolve():
            raise UsageError(f"{other} is the database that rows are added to; name others")
        Database.check(other)
    with Database.open(path, read_only=False, create=True) as database:
        for other in others:
            print(f"{other}: {database.merge(other)} new rows")


@app.command("verify")
def verify(db: Path_ = None) -> None:
    """Check that every row hashes to its key: that nothing changed it since it was measured."""
    from kernrec.store import Database

    path = db or paths.user_database()
    with Database.open(path) as database:
        altered, rows = database.altered(), sum(database.counts().values())
    if altered:
        some = ", ".join(altered[:3])
        raise KernrecError(f"{len(altered)} of {rows} rows in {path} are not as they were written ({some} ...)")
    print(f"{rows} rows, all as they were written")


def _problem(op: str, shape: str, dtype: str | None, layout: str | None) -> "Problem":
    from kernrec.op import find_op, parse_shape

    return find_op(op).problem(dtype, layout, **parse_shape(shape))


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
