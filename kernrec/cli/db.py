"""`kernrec db`: show, import, export, merge and verify databases."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec.cli import options, share
from kernrec.cli.app import Commands
from kernrec.cli.db_info import CONTRIBUTED, conflicting, info
from kernrec.cli.options import argument, option
from kernrec.cli.output import print_notes, print_rows
from kernrec.cli.progress import Steps
from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.util.files import check_input, open_input
from kernrec.util.human import counted, human

if TYPE_CHECKING:
    from kernrec.interop.import_results import ImportSummary

app = Commands(help="Inspect, import, export, merge, verify and share databases.", no_args_is_help=True)
for _command in (info, share.push, share.pull, share.withdraw, share.trust):
    app.command(_command.__name__)(_command)

_SHOWN = 10
"""Maximum number of row keys to print per kind of fault."""


class ImportOptions(options.Options):
    file: Annotated[
        Path,
        argument("Bundle; results of Kernel Tuner, KTT, CLBlast, Triton or Nsight Compute; or, with --spec, a table."),
    ]
    op: Annotated[str | None, option("Operator, if neither the spec nor the file names it.", "--op")] = None  # type: ignore[assignment]
    shape: Annotated[str | None, option("Dimensions that the file lacks: m=64,n=64,k=64.")] = None
    gpu: Annotated[str | None, option("GPU, if the file does not name it.", "--gpu")] = None  # type: ignore[assignment]
    kernel: Annotated[str | None, option("Kernel: with --spec its source, otherwise its name.")] = None
    spec: Annotated[Path | None, option("Spec of the kernel to which the rows belong.")] = None
    map: Annotated[
        list[str] | None,
        option(
            "Quantity or tunable and its column, with --spec: 'latency_s=time (ms)*1e-3', block_x=bx, "
            "ignore=COLUMN or by=WHO; repeatable."
        ),
    ] = None
    dtype: Annotated[str | None, option("Data type. Default: the op's first.")] = None
    layout: Annotated[str | None, option("Tensor layout. Default: the op's first.")] = None
    untrusted: share.Untrusted = False


@app.command("import")
@options.takes(ImportOptions)
def import_(wanted: ImportOptions) -> None:
    """Import a bundle, or the results of another tuner, into a database.

    Units are converted, and failed configs are imported, too. With --kernel and --spec, the results become measurements
    of your kernel, which recommendations and models then use.
    """
    file, path = wanted.file, wanted.database
    check_input(file)
    if not file.exists():
        raise UsageError(cannot_be("read", file, FileNotFoundError()))
    if _is_bundle(file):
        if wanted.op or wanted.shape or wanted.gpu or wanted.kernel or wanted.spec:
            raise UsageError(f"{file} is a bundle, which states what was measured; omit all options except --db")
        _import_bundle(file, path, wanted.untrusted)
        share.print_withdrawn_copies(path)
        return
    if file.suffix == ".zip":
        raise UsageError(f"{file} is not a bundle: it is not a zip file")
    done, left_out = _import_results(wanted, path)
    for each in done.kernels:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(each.outcomes.items()))
        best = "" if each.best_s is None else f", best {human(each.best_s, 's')}"
        about = f"{each.kernel} for {done.problem.key} on {done.gpu.title}"
        print(f"{about}: {counted(each.results, 'result')} ({counts}){best}")
    print_notes((*left_out, *done.notes))
    if done.added < done.results:
        print_notes([f"{done.results - done.added} of them were there already"])
    if done.dropped:
        print_notes([f"{file} is cut short: {done.dropped} incomplete entry at its end was skipped"])


def _import_results(wanted: ImportOptions, path: Path) -> "tuple[ImportSummary, list[str]]":
    """Import another tuner's results. Return (summary, notes)."""
    from kernrec.interop.import_results import import_results
    from kernrec.interop.results import MappedColumn, StatedProblem
    from kernrec.interop.t1 import load_spec
    from kernrec.op import parse_shape
    from kernrec.recommender.analyze.kernel import check_tunables_used
    from kernrec.store.intake import adding_to

    dims = parse_shape(wanted.shape) if wanted.shape else {}
    problem = StatedProblem(wanted.op, tuple(dims.items()), wanted.dtype, wanted.layout)
    if wanted.spec is None:
        if wanted.map:
            raise UsageError(
                "--map names the columns of your kernel's results, so it needs the kernel's spec: give it as --spec"
                " (`kernrec analyze FILE.cu --init` writes a draft)"
            )
        with Steps(f"checking and adding {wanted.file}"), adding_to(path) as database:
            return import_results(database, wanted.file, problem, wanted.gpu, wanted.kernel), []
    if wanted.op is not None:
        raise UsageError("--op is for results without a source; with --spec, the spec states what was computed")
    if wanted.kernel is None:
        raise UsageError(f"--kernel is missing; give the source file that {wanted.spec} describes")
    own, notes = load_spec(wanted.spec, Path(wanted.kernel))
    check_tunables_used(own)
    words = [text.partition("=") for text in wanted.map or ()]
    ignored = tuple(column for name, _, value in words if name == "ignore" for column in value.split(","))
    by = next((value for name, _, value in words if name == "by"), "")
    mapped = tuple(MappedColumn.parse("".join(word)) for word in words if word[0] not in ("ignore", "by"))
    with Steps(f"checking and adding {wanted.file}"), adding_to(path) as database:
        return import_results(database, wanted.file, problem, wanted.gpu, own, by, mapped, ignored), notes


class ExportOptions(options.Options):
    bundle: Annotated[Path, option("File (.zip) or folder to write.")]
    gpu: share.Gpu = None  # type: ignore[assignment]
    op: Annotated[str | None, option("Only measurements of this operator.", "--op")] = None  # type: ignore[assignment]
    kernel: share.Kernel = None
    licence: share.Licence = None


@app.command("export")
@options.takes(ExportOptions)
def export(wanted: ExportOptions) -> None:
    """Export measurements to a signed bundle of Parquet files, which others can import.

    Any program that reads Parquet can read the files.
    """
    from kernrec.gpu import find_gpu
    from kernrec.store import Database
    from kernrec.store.keys import Signer, key_file, make_own_key
    from kernrec.store.share.bundle import write_bundle
    from kernrec.store.share.outgoing import Selection, outgoing, secret_of
    from kernrec.store.share.place import MANIFEST, place_at
    from kernrec.util.files import scratch_folder

    path, own = wanted.bundle, wanted.database
    chosen = Selection(wanted.gpu and find_gpu(wanted.gpu).name, wanted.op and _op_name(own, wanted.op), wanted.kernel)
    licence, place = wanted.licence or share.asked_licence("those who get the bundle"), place_at(path)
    if path.exists() and (not path.is_dir() or MANIFEST in place.names()):
        raise UsageError(f"{path} exists already; name a new file or folder")
    with Database.open(own) as opened, scratch_folder() as folder:
        make_own_key()
        leaving = outgoing(opened, chosen, secret_of(own), folder, licence)
        if not leaving.measurements:
            raise KernrecError(f"{own} has no matching measurements")
        share.print_manifest(leaving.manifest)
        write_bundle(place, leaving.manifest, leaving.files, Signer.of(key_file()))
    print(f"written to {path}, licence {leaving.manifest.licence}")


def _op_name(database: Path, op: str) -> str:
    from kernrec.op import find_op
    from kernrec.store import Database

    try:
        return find_op(op).name
    except UsageError:
        if database.exists():
            with Database.open(database) as opened:
                if opened.rows("problem", op=op):
                    return op
        raise


class MergeOptions(options.Options):
    others: Annotated[list[Path], argument("Databases to merge into yours; they are not changed.")]


@app.command("merge")
@options.takes(MergeOptions)
def merge(wanted: MergeOptions) -> None:
    """Add all rows of other databases to your database.

    All rows of a file are checked first. If any row was altered or is impossible, the whole file is refused. Merging
    the same file again changes nothing, and the order of files does not matter.
    """
    from kernrec.store import Database
    from kernrec.store.intake import merge_file
    from kernrec.training.contradictions import named_rows

    path = wanted.database
    for other in wanted.others:  # Check the arguments before creating or changing anything.
        if other.resolve() == path.resolve():
            raise UsageError(f"{other} is the database that rows are added to; name other databases")
        if not other.exists():
            raise UsageError(f"there is no database at {other}")
    notes: list[str] = []
    for number, other in enumerate(wanted.others):
        with Steps(f"checking and adding {other}, file {number + 1} of {len(wanted.others)}"):
            added = merge_file(path, other, notes.append)
        print(f"{other}: {counted(added, 'new row')}")
    with Database.open(path) as database:
        conflicts, doubted = len(database.conflicts()), list(named_rows(database))
    print_notes([*notes, *([conflicting(conflicts)] if conflicts else []), *doubted])
    share.print_withdrawn_copies(path)


class VerifyOptions(options.Options):
    place: Annotated[str | None, argument("Place whose bundles to check instead.", "PLACE")] = None
    remove: Annotated[bool, option("Delete impossible rows.", "--remove")] = False
    list_: Annotated[bool, option("Write the place's index.json, which web servers need.", "--list")] = False


@app.command("verify")
@options.takes(VerifyOptions)
def verify(wanted: VerifyOptions) -> None:
    """Check that no row of a database was altered since it was written, and that no row is impossible.

    A row was altered if its key differs from the hash of its content. Impossible rows are listed. Answers ignore them,
    and --remove deletes them. Rows whose clock, power or energy contradict the GPU or each other are also listed. The
    file in which queries cache the database is checked, too.

    With PLACE, all bundles there are checked as in a pull. A bundle that repeats rows of another is refused. GPUs
    that are slower or faster than others of the same model are listed. The exit status is 1 if a bundle is refused.
    """
    if wanted.place is not None:
        if wanted.db or wanted.remove:
            raise UsageError(f"--db and --remove are for a database; to check {wanted.place}, omit them")
        _verify_place(wanted.place, wanted.list_)
        return
    if wanted.list_:
        raise UsageError("--list needs a place: `kernrec db verify PLACE`")
    from kernrec.store import Database
    from kernrec.store.marks import file_state
    from kernrec.store.query_file import wrong_entries
    from kernrec.store.reader import read_untrusted
    from kernrec.training.contradictions import named_rows

    path = wanted.database
    with Steps(f"checking every row of {path}"), Database.open(path, check_rows=False) as database:
        altered, rows = database.altered(), sum(database.counts().values())
        conflicts = len(database.conflicts())
        doubted = list(named_rows(database))
    faults = read_untrusted("faults", path, state=file_state(path))
    if wrong := wrong_entries(path, Database.open):
        doubted.append(f"{counted(wrong, 'entry')} of the file that queries read differ from the database; deleted it")
    print_notes([*([conflicting(conflicts)] if conflicts else []), *doubted])
    impossible = {key for by in faults.values() for keys in by.values() for key in keys}
    for table, by in faults.items():
        for fault, keys in by.items():
            some = ", ".join(keys[:_SHOWN]) + " ..." * (len(keys) > _SHOWN)
            print(f"{table} rows that {fault}: {len(keys)} ({some})")
    if wanted.remove and impossible:
        with Database.open(path, read_only=False, check_rows=False) as database:
            print(f"{counted(database.remove(faults), 'row')} of {path} deleted")
        return
    if altered:
        some = ", ".join(altered[:3])
        more = " ..." if len(altered) > 3 else ""
        raise KernrecError(f"changed since they were written: {len(altered)} of {rows} rows in {path} ({some}{more})")
    if impossible:
        raise KernrecError(f"{len(impossible)} of {rows} rows in {path} are impossible; --remove deletes them")
    print(f"{counted(rows, 'row')}, none was changed since it was written")


def _verify_place(name: str, listed: bool) -> None:
    from kernrec.store.share.push import check_place, write_list
    from kernrec.store.share.servers import place_of

    place = place_of(name)
    with Steps(f"checking the bundles of {place.title}"):
        report = check_place(place)
    print_rows(None, report.rows, CONTRIBUTED)
    print(f"{counted(report.bundles, 'bundle')}" + (f", {len(report.bad)} refused" if report.bad else ""))
    if listed:
        write_list(place, report.bad)
    print_notes(f"{file}: refused: {reason}" for file, reason in sorted(report.bad.items()))
    if report.bad:
        raise typer.Exit(1)


def _import_bundle(path: Path, database: Path, untrusted: bool) -> None:
    """Add the rows of a bundle to a database. `untrusted` accepts an unknown signer."""
    from kernrec.store.keys import signer_name, trusts
    from kernrec.store.share.bundle import import_to, read_bundle
    from kernrec.store.share.place import place_at

    bundle = read_bundle(place_at(path))
    manifest = bundle.manifest
    share.print_manifest(manifest)
    if not untrusted and not trusts(manifest.owner):
        raise UsageError(
            f"{path} is signed by an unknown key, {manifest.owner}; nothing was imported (`kernrec db trust KEY` "
            f"trusts the key; --untrusted imports the bundle anyway)"
        )
    with Steps(f"checking and adding {path}"):
        added = import_to(database, bundle)
    print(f"{counted(added, 'new row')}, licence {manifest.licence}, signed by {signer_name(manifest.owner)}")
    if manifest.models:
        print_notes([f"skipped: {counted(len(manifest.models), 'file')} of models; `kernrec train` trains models"])


def _is_bundle(path: Path) -> bool:
    from kernrec.store.share.place import MANIFEST

    if path.is_dir():
        return (path / MANIFEST).is_file()
    try:
        with open_input(path) as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False
