"""CPU time and memory of merging a stranger's database, and of asking the database that it was merged into.

Rows are made by DuckDB, with their true keys: as many columns as an imported recording fills, or with `--columns all`
as many as kernrec's own protocol does. `cpu_s` are times of processors, because others use the machine; `merge_s`
is the clock's and says something on an idle machine alone. `query` is one problem in a new process, of which the
rows of a database are one of a few parts; with few problems, each config of a problem was measured in many sessions.
`--asking` merges in a process of its own and asks all the while: queries that were refused, and the processor time of a
query then over that of one before.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Literal

import typer
from front import Table

from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.intake import merge
from kernrec.store.row_hash import key_expression

_GPU, _CONFIGS, _PROBLEMS = "h200-sxm", 1000, 100
RECORDED = {
    "gpu": f"'{_GPU}'",
    "kernel": "'k'",
    "kernel_hash": "'0123456789abcdef'",
    "protocol_version": "1",
    "tier": "'final'",
    "measured_at": "TIMESTAMP '2026-03-01' + INTERVAL (i) SECOND",
    "outcome": "'ok'",
    "session": "'s' || i // 1000",
    "block": "i % 1000 // 50",
    "position": "i % 50",
    "latency_s": "1e-3 + random() / 1e3",
    "latency_samples_s": "[1e-3, 2e-3] || [1e-3 + random() / 1e3 FOR _ IN range(18)]",
}
_TEXTS = (
    "cubin_hash",
    "compiler",
    "compiler_flags",
    "input_generator",
    "input_distribution",
    "device",
    "driver",
    "cuda",
)
_NUMBERS = (
    *("latency_mad_s", "latency_q10_s", "latency_q90_s", "latency_window_s", "sustained_latency_s", "energy_window_s"),
    *("idle_w", "temperature_start_c", "temperature_end_c", "reference_age_s", "reference_latency", "reference_energy"),
    *("numeric_error", "tolerance", "input_footprint"),
)
_POSSIBLE = {
    "latency_low_s": "random() / 1e3",
    "latency_high_s": "2e-3 + random() / 1e3",
    "energy_j": "0.3 + random() / 10",
    "energy_low_j": "0.2 + random() / 10",
    "energy_high_j": "0.4 + random() / 10",
    "power_w": "200 + random()",
    **dict.fromkeys(("sm_clock_mean_hz", "sm_clock_min_hz", "memory_clock_hz"), "1e9 + 1e8 * random()"),
}
"""Columns within bounds that the store checks."""
_WHOLE = ("registers", "smem_bytes", "spill_bytes", "launches", "latency_n", "latency_outliers", "energy_ticks")
_MEASURED = (
    dict.fromkeys(_TEXTS, "substr(sha256(CAST(i % 1000 AS VARCHAR)), 1, 16)")
    | dict.fromkeys(_NUMBERS, "1 + random()")
    | dict.fromkeys(_WHOLE, "i % 1000")
    | _POSSIBLE
    | {"event_reasons": "'{\"power cap\":0.25}'", "ecc": "true", "measured_by": "'kernrec'"}
)
_QUERY = """
import sys
from kernrec.store import Stack
answers = Stack([sys.argv[1]], keep_open=True).evidence(sys.argv[2], sys.argv[3], ["k"], sys.argv[4])
assert len(answers.measured) == int(sys.argv[5])
"""


def run(
    rows: Annotated[list[int], typer.Option()] = [10_000],  # noqa: B006
    columns: Literal["recorded", "all"] = "recorded", problems: int = _PROBLEMS, asking: bool = False,
) -> None:  # fmt: skip
    """Print a row for each number of rows."""
    made, table = RECORDED | (_MEASURED if columns == "all" else {}), Table()
    for count in rows:
        with tempfile.TemporaryDirectory(prefix="kernrec-") as folder:
            table.row((asked_meanwhile if asking else merging)(Path(folder), count, made, problems))


def asked_meanwhile(folder: Path, rows: int, columns: dict[str, str], most_problems: int) -> dict[str, float]:
    """Return how queries fare while rows are merged into the database that they ask; arguments as of `merging`."""
    theirs, own = folder / "theirs.duckdb", folder / "own.duckdb"
    with ProcessPoolExecutor(1, get_context("spawn")) as maker:
        maker.submit(fill, theirs, rows, columns, most_problems, _CONFIGS * _PROBLEMS).result()
        problems = maker.submit(fill, own, 10 * _CONFIGS, columns, most_problems).result()
    question = [sys.executable, "-c", _QUERY, str(own), _GPU, "matmul", problems[0], str(_CONFIGS)]

    def ask() -> tuple[int, float]:
        _, status, used = os.wait4(os.posix_spawn(sys.executable, question, os.environ), 0)
        return status, used.ru_utime + used.ru_stime

    ask()  # the file is checked once
    before = [ask() for _ in range(10)]
    merge_it = [sys.executable, "-m", "kernrec", "db", "merge", str(theirs), "--db", str(own)]
    with subprocess.Popen(merge_it, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as merger:
        meanwhile = []
        while merger.poll() is None:
            meanwhile.append(ask())
    spent, usual = (statistics.median(seconds for _, seconds in each) for each in (meanwhile, before))
    return {
        "rows": rows,
        "merged": int(merger.returncode == 0),
        "queries": len(meanwhile),
        "refused": sum(status != 0 for status, _ in meanwhile),
        "query_cpu_s": round(spent, 3),
        "slower": round(spent / usual, 2),
    }


def merging(folder: Path, rows: int, columns: dict[str, str], most_problems: int) -> dict[str, float]:
    """The cost of merging `rows` measurements; memory is the most so far of this process and of its children.

    Args:
        folder: for the databases.
        rows: a multiple of 1000.
        columns: what they hold, in SQL about the number `i` of a row.
        most_problems: that they are of.
    """
    theirs, own = folder / "theirs.duckdb", folder / "own.duckdb"
    maker = ProcessPoolExecutor(1, get_context("spawn"))  # until the end: what it takes is not counted
    problems = maker.submit(fill, theirs, rows, columns, most_problems).result()
    with Database.open(own, read_only=False, create=True) as database:
        before, started_s = os.times(), time.monotonic()
        added = merge(database, theirs)
    after, merge_s = os.times(), time.monotonic() - started_s
    check_mb = round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3)
    add_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    with Database.open(own, read_only=False) as database:
        assert merge(database, theirs) == 0
    again = os.times()
    arguments = [str(own), _GPU, "matmul", problems[0], str(min(rows // len(problems), _CONFIGS))]
    for _ in range(3):
        subprocess.run([sys.executable, "-c", _QUERY, *arguments], check=True)
    queried = os.times()
    maker.shutdown()
    return {
        "rows": rows,
        "added": added,
        "file_mb": round(theirs.stat().st_size / 1e6, 1),
        "check_cpu_s": _spent(before, after, "children"),
        "add_cpu_s": _spent(before, after, "self"),
        "again_cpu_s": round(_spent(after, again, "children") + _spent(after, again, "self"), 2),
        "query_cpu_s": round(_spent(again, queried, "children") / 3, 3),
        "merge_s": round(merge_s, 1),
        "check_mb": check_mb,
        "add_mb": add_mb,
    }


def _spent(before: os.times_result, after: os.times_result, whose: str) -> float:
    """Seconds of processors between two moments, of this process or of its children."""
    if whose == "self":
        return round(after.user + after.system - before.user - before.system, 2)
    ours = after.children_user + after.children_system
    return round(ours - before.children_user - before.children_system, 3)


def fill(path: Path, rows: int, columns: dict[str, str], most_problems: int = _PROBLEMS, first: int = 0) -> list[str]:
    """Make a database of `rows` measurements, numbered from `first` on; returns the keys of its problems."""
    count = min(most_problems, (first + rows) // _CONFIGS)
    problems = [find_op("matmul").problem(m=64, n=32, k=16 * (1 + i)) for i in range(count)]
    with Database.open(path, read_only=False, create=True) as database:
        database.add("config", [{"kernel": "k", "tunables": {"i": i}} for i in range(_CONFIGS)])
        database.add("problem", [problem.as_dict() for problem in problems])
        kinds = database.columns("measurement")
        key, *names = kinds
        connection = database._connection
        cast = ", ".join(
            f'CAST({columns.get(name, "NULL")} AS {kinds[name]}) AS "{name}"'
            for name in names
            if name not in ("config_id", "problem_id")
        )
        for start in range(first, first + rows, 1_000_000):  # the random numbers are drawn once
            connection.execute(
                f"CREATE OR REPLACE TEMP TABLE made AS SELECT {cast}, config_id, problem_id "
                f"FROM range({start}, {min(first + rows, start + 1_000_000)}) AS numbers(i) "
                f"JOIN (SELECT config_id, row_number() OVER () - 1 AS c FROM db.config) ON c = i % {_CONFIGS} "
                f"JOIN (SELECT problem_id, row_number() OVER () - 1 AS p FROM db.problem) "
                f"ON p = i // {_CONFIGS} % {len(problems)}"
            )
            made = f"SELECT {key_expression('measurement', kinds)} AS {key}, * FROM made"
            connection.execute(f"INSERT INTO db.measurement BY NAME {made}")
    return [problem.key for problem in problems]
