"""Time of checking a place of contributed bundles, of pulling all of it, and of a query beside what was pulled.

Bundles are of one kind of card, of 1,000 rows each, by so many people who sign in turns. `check_cpu_s` and `pull_cpu_s`
are times of processors, here and in the processes that read bundles; `check_s`, `pull_s` are the clock's, and say
something on an idle machine alone. `query_cpu_s` is one problem, of which the user measured 1,000 configs, too, in a
new process, and `alone_cpu_s` the same without what was pulled; they take turns.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer
from front import Table

from kernrec import paths
from kernrec.store import Database
from kernrec.store.connection import exchange_folder, quoted
from kernrec.store.keys import Signer, make_key
from kernrec.store.share.bundle import write_bundle
from kernrec.store.share.check import check_place
from kernrec.store.share.manifest import Manifest, Segment, bundle_name
from kernrec.store.share.object_store import place_of
from kernrec.store.share.place import ZipFile
from kernrec.store.share.pull import pull

from .share import _at
from .store import _GPU, RECORDED, fill
from .timing import medians, spent

_ROWS = 1000
_TOGETHER = 500
"""Bundles that are made of one database."""
_QUERY = """
import sys
from kernrec.store import Stack
answers = Stack(keep_open=True).evidence(sys.argv[1], "matmul", ["k"], sys.argv[2])
assert len(answers.measured) == 1000
assert (sys.argv[3] == "with") == any(answer.others_s for answer in answers.measured)
"""
_TURNS = 5


def run(
    bundles: Annotated[list[int], typer.Option()] = [100],  # noqa: B006
    people: int = 10,
    made: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """Print a row for each number of bundles.

    `made`: a folder for one index, which is used if it is there, and stays: to make 10^7 rows takes half an hour.
    """
    table = Table()
    for count in bundles:
        with tempfile.TemporaryDirectory(prefix="kernrec-") as name:
            place = Path(name) if made is None else made
            if not (place / "contributed").exists():
                place.mkdir(exist_ok=True)
                make_index(place, count, people)
            table.row(indexing(place / "contributed", Path(name), count))


def indexing(index: Path, folder: Path, bundles: int) -> dict[str, Any]:
    """The costs of an index of so many bundles; `folder`: for a machine that pulls it."""
    size = sum(file.stat().st_size for file in index.glob("*/*.zip"))
    done: dict[str, Any] = {"bundles": bundles, "rows": bundles * _ROWS, "mb": round(size / 1e6, 1)}
    contributed = place_of(str(index))

    def checking() -> None:
        report = check_place(contributed)
        assert not report.bad, report.bad
        assert sum(int(str(row["rows"])) for row in report.rows) == done["rows"]

    def pulling() -> None:
        assert pull(contributed, untrusted=True).measurements == done["rows"]

    machines = folder / "reader", folder / "alone"
    problem = ""
    for machine in machines:
        with _at(machine):
            problem = fill(paths.user_database(), _ROWS, RECORDED)[0]
    with _at(machines[0]):
        for name, call in (("pull", pulling), ("check", checking)):
            took = spent(call)
            done[f"{name}_cpu_s"], done[f"{name}_s"] = round(took.cpu, 2), round(took.clock, 1)

    def query(machine: Path, others: str) -> None:
        with _at(machine):
            subprocess.run([sys.executable, "-c", _QUERY, _GPU, problem, others], check=True)

    calls = [partial(query, machine, others) for machine, others in zip(machines, ("with", "without"), strict=True)]
    done["query_cpu_s"], done["alone_cpu_s"] = (round(took.cpu, 3) for took in medians(calls, _TURNS))
    return done


def make_index(folder: Path, bundles: int, people: int) -> None:
    """Write bundles to an index in a folder."""
    columns = RECORDED | {"device_uuid_hash": "md5(CAST(i // 1000 AS VARCHAR))[:16]"}
    signers = []
    for number in range(people):
        make_key(folder / f"key{number}")
        signers.append(Signer.of(folder / f"key{number}"))
    for first in range(0, bundles, _TOGETHER):
        count = min(_TOGETHER, bundles - first)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            database = Path(scratch) / "some.duckdb"
            fill(database, count * _ROWS, columns, first=first * _ROWS)
            with Database.open(database) as opened:
                _write(opened, folder / "contributed", signers)


def _write(database: Database, index: Path, signers: Sequence[Signer]) -> None:
    """Write each session of a database as a bundle: what `contribute` writes, many at once."""
    with exchange_folder(database._connection) as scratch:
        database.query(
            f"COPY (FROM db.measurement ORDER BY 1) TO {quoted(scratch / 'session')} (FORMAT parquet, COMPRESSION zstd,"
            " PARTITION_BY session, WRITE_PARTITION_COLUMNS)"
        )
        parts = {"config": scratch / "config.parquet"}
        database.query(f"COPY (FROM db.config) TO {quoted(parts['config'])} (FORMAT parquet, COMPRESSION zstd)")
        query = "SELECT session, any_value(problem_id) FROM db.measurement GROUP BY 1 ORDER BY length(session), 1"
        for number, (session, problem) in enumerate(database.query(query)):
            parts["problem"] = scratch / f"{problem}.parquet"
            if not parts["problem"].exists():
                some = f"FROM db.problem WHERE problem_id = {quoted(problem)}"
                database.query(f"COPY ({some}) TO {quoted(parts['problem'])} (FORMAT parquet, COMPRESSION zstd)")
            (parts["measurement"],) = (scratch / "session" / f"session={session}").iterdir()
            files, segments = {}, []
            for table, rows in (("config", _ROWS), ("problem", 1), ("measurement", _ROWS)):
                content = parts[table].read_bytes()
                segments.append(Segment(table, sha256(content).hexdigest(), len(content), rows))
                files[segments[-1].name] = parts[table]
            about = {"gpus": [_GPU], "ops": ["matmul"], "kernels": ["k"], "days": []}
            manifest = Manifest(tuple(segments), (), "2026-03-01T12:00:00", "kernrec", provenance=about)
            written = write_bundle(ZipFile(scratch / "part.zip"), manifest, files, signers[number % len(signers)])
            target = index / bundle_name(written)
            target.parent.mkdir(parents=True, exist_ok=True)
            (scratch / "part.zip").rename(target)
