"""Measure processor time and memory of merging an untrusted database, and of queries to the merged database in new
processes. Memory is the maximum of this process and its child processes."""

import os
import resource
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from front import Table

from benchmarks.timing import python, spent
from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.exchange import key_expression
from kernrec.store.intake import merge_file

_GPU, _CONFIGS, _PROBLEMS = "h200-sxm", 1000, 100
COLUMNS = {
    "gpu": f"'{_GPU}'", "kernel": "'k'", "kernel_hash": "'0123456789abcdef'", "protocol_version": "1",
    "tier": "'final'", "measured_at": "TIMESTAMP '2026-03-01' + INTERVAL (i) SECOND", "outcome": "'ok'",
    "session": "'s' || i // 1000", "block": "i % 1000 // 50", "position": "i % 50",
    "latency_s": "1e-3 + random() / 1e3",
    "latency_samples_s": "[1e-3, 2e-3] || [1e-3 + random() / 1e3 FOR _ IN range(18)]",
}  # fmt: skip
"""SQL expressions that compute a measurement's columns from the row number `i`."""
_QUERY = """
import sys
from kernrec.store import Stack
answers = Stack([sys.argv[1]]).evidence(sys.argv[2], "matmul", ["k"], sys.argv[3])
assert len(answers.measured) == int(sys.argv[4])
"""


def run(
    rows: Annotated[list[int], typer.Option()] = [10_000],  # noqa: B006
    problems: int = _PROBLEMS,
) -> None:
    table = Table()
    for count in rows:
        with tempfile.TemporaryDirectory(prefix="kernrec-") as name:
            theirs, own = Path(name, "theirs.duckdb"), Path(name, "own.duckdb")
            # Create measurements in a separate process, so that its memory does not count.
            with ProcessPoolExecutor(1, get_context("spawn")) as maker:
                keys = maker.submit(fill, theirs, count, problems).result()
            cells: dict[str, object] = {"rows": count, "file [MB]": f"{theirs.stat().st_size / 1e6:.1f}"}
            cells["merge [s]"] = f"{spent(partial(merge_file, own, theirs)):.2f}"
            cells["again [s]"] = f"{spent(partial(merge_file, own, theirs)):.2f}"
            ask = partial(python, _QUERY, own, _GPU, keys[0], min(count // len(keys), _CONFIGS), environment=os.environ)
            cells["first [s]"] = f"{spent(ask):.2f}"  # The first query also writes a file for later queries.
            cells["query [s]"] = f"{median(spent(ask) for _ in range(3)):.3f}"
            for title, who in (("check [MB]", resource.RUSAGE_CHILDREN), ("add [MB]", resource.RUSAGE_SELF)):
                cells[title] = f"{resource.getrusage(who).ru_maxrss / 1e3:.0f}"
            table.row(cells)


def fill(path: Path, rows: int, most_problems: int = _PROBLEMS) -> list[str]:
    """Create a database with measurements, and return the keys of its problems."""
    problems = [
        find_op("matmul").problem(m=64, n=32, k=16 * (1 + i)) for i in range(min(most_problems, rows // _CONFIGS))
    ]
    with Database.open(path, read_only=False, create=True) as database:
        database.add("config", [{"kernel": "k", "tunables": {"i": i}} for i in range(_CONFIGS)])
        database.add("problem", [problem.as_dict() for problem in problems])
        kinds = database.columns("measurement")
        key, *names = kinds
        values = (f'CAST({COLUMNS.get(name, "NULL")} AS {kinds[name]}) AS "{name}"' for name in names
                  if name not in ("config_id", "problem_id"))  # fmt: skip
        columns, connection = ", ".join(values), database._connection
        # The temporary table stores the random numbers, because keys are hashes of the stored values.
        for start in range(0, rows, 1_000_000):
            connection.execute(
                f"CREATE OR REPLACE TEMP TABLE made AS SELECT {columns}, config_id, problem_id "
                f"FROM range({start}, {min(rows, start + 1_000_000)}) AS numbers(i) "
                f"JOIN (SELECT config_id, row_number() OVER () - 1 AS c FROM db.config) ON c = i % {_CONFIGS} "
                f"JOIN (SELECT problem_id, row_number() OVER () - 1 AS p FROM db.problem) "
                f"ON p = i // {_CONFIGS} % {len(problems)}"
            )
            made = f"SELECT {key_expression('measurement', kinds)} AS {key}, * FROM made"
            connection.execute(f"INSERT INTO db.measurement BY NAME {made}")
    return [problem.key for problem in problems]
