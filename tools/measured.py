"""Measurements as Parquet files, for the repository: out of a database, and back into one.

    python tools/measured.py export kernrec.duckdb datasets/measured
    python tools/measured.py import datasets/measured kernrec.duckdb

One file for each GPU and op, `<gpu>.<op>.parquet`: the columns of `measurement`, with the config and the problem in
place of their keys. A row's key is the hash of its content, so nothing is added twice, in either direction. Export
replaces a file only by one that holds all its rows.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

from kernrec.errors import KernrecError, UsageError
from kernrec.op import all_ops, problem_from_key
from kernrec.store import Database
from kernrec.store.connection import exchange_folder, one_line, parquet_rows, quoted
from kernrec.store.intake import merge
from kernrec.store.measurement import Measurement, upgrade_columns

_ROWS = """
    SELECT measurement.* EXCLUDE (measurement_id, config_id, problem_id), tunables AS config, problem.key AS problem
    FROM db.measurement AS measurement JOIN db.config USING (config_id) JOIN db.problem AS problem USING (problem_id)
"""


def main() -> int:
    """Exports or imports; exit status 2 for files that cannot be used."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("export", "import"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    try:
        if arguments.action == "export":
            for path, rows in export(arguments.source, arguments.target):
                print(f"{path}: {rows} rows")
        else:
            print(f"{bring_in(arguments.source, arguments.target)} rows are new in {arguments.target}")
    except KernrecError as error:
        print(f"measured.py: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def export(database: Path, folder: Path) -> list[tuple[Path, int]]:
    """Write the files of what a database holds; gives each with its number of rows.

    Other rows of the files there stay: a file only grows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    Database.open(database).close()  # so that a file that is not one of ours says what it is
    written = []
    with Database.memory() as merged, one_line(database):
        merge(merged, database)
        rows = merged.rows("measurement")
        held = {str(row["problem_id"]): str(row["op"]) for row in merged.rows("problem")}
        ops = {op.name for op in all_ops()}  # an op that a spec declares for itself has no file here
        for gpu, op in sorted({(str(row["gpu"]), held[str(row["problem_id"])]) for row in rows}):
            if op not in ops:
                continue
            path = folder / f"{gpu}.{op}.parquet"
            if path.exists():
                merged.add_measurements(map(Measurement.from_columns, read(path)))
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            chosen = f"WHERE gpu = {quoted(gpu)} AND problem.op = {quoted(op)}"
            try:
                with exchange_folder(merged._connection) as exchange:
                    merged._connection.execute(
                        f"COPY ({_ROWS} {chosen} ORDER BY problem.key, measurement.kernel, tunables, measured_at) TO "
                        f"{quoted(exchange / path.name)} (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 19)"
                    )
                    shutil.copyfile(exchange / path.name, temporary)
                count = merged._connection.execute(f"SELECT count(*) FROM ({_ROWS} {chosen})").fetchone()
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            written.append((path, int(count[0]) if count else 0))
    return written


def read(path: Path) -> list[dict[str, object]]:
    """The rows of a file, as `Measurement.from_columns` takes them."""
    with one_line(path), parquet_rows(path) as (connection, source):
        cursor = connection.execute(f"FROM {source}")
        names = [column[0] for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return [
        upgrade_columns(row) | {"config": json.loads(row["config"]), "problem": problem_from_key(row["problem"])}
        for row in rows
    ]


def bring_in(folder: Path, database: Path) -> int:
    """Add the rows of all files of a folder to a database, made if there is none; gives how many were new."""
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise UsageError(f"there are no measurements in {folder}: <gpu>.<op>.parquet is expected")
    with Database.open(database, read_only=False, create=True) as opened:
        before = opened.counts()["measurement"]
        for path in files:
            opened.add_measurements(map(Measurement.from_columns, read(path)))
        return opened.counts()["measurement"] - before


if __name__ == "__main__":
    sys.exit(main())
