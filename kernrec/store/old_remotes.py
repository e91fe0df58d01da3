"""What kernrec 0.1 pulled: a database for each remote, with tables of its own. It is put into that of today, once."""

from pathlib import Path
from shutil import move

from kernrec import paths
from kernrec.store.connection import quoted
from kernrec.store.database import Database, replace_file
from kernrec.store.keys import read_settings
from kernrec.util.scratch import scratch_folder

_TABLES = ("config", "problem", "profile", "measurement")


def adopt_pulled(path: Path) -> None:
    """Put the rows of each remote of kernrec 0.1 into the new database of pulled rows, in the remotes' order.

    The new database is made beside its place and then renamed: a program that is killed has changed nothing. The files
    of the remotes stay; nothing reads them any more.
    """
    order = [str(each.get("name")) for each in read_settings("remotes.json", list) if isinstance(each, dict)]
    files = [paths.remotes() / name / "rows.duckdb" for name in order]
    if not (files := [file for file in files if file.is_file()]):
        return
    beside = path.with_name(f".{path.name}.old-remotes")
    for name in (beside, beside.with_name(f"{beside.name}.wal")):
        name.unlink(missing_ok=True)
    with Database.open(beside, read_only=False, create=True) as database:
        for file in files:
            _add(database, file)
    replace_file(beside, path)


def _add(database: Database, file: Path) -> None:
    queries = {table: f"FROM db.{table}" for table in _TABLES} | {
        "shared": "SELECT measurement_id, signer FROM db.origin ANTI JOIN db.retracted USING (measurement_id, signer)"
    }
    with scratch_folder() as folder, Database.open(file, check_rows=False) as old:
        moved = {table: [rows for rows, _ in old.export(query, folder)] for table, query in queries.items()}

        def write(exchange: Path) -> None:
            for table, files in moved.items():
                for number, rows in enumerate(files):
                    move(rows, exchange / f"{table}{number}.parquet")

        def then(exchange: Path) -> list[str]:
            shared = f"read_parquet({quoted(exchange / 'shared*.parquet')})"
            return [
                "INSERT INTO db.merged BY NAME SELECT measurement_id, gpu, problem_id, signer"
                f" FROM db.measurement JOIN {shared} USING (measurement_id)"
            ]

        if moved["shared"]:
            database.add_from(write, then=then)
