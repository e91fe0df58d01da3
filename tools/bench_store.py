"""CPU time and memory of merging a stranger's database: reading and checking its rows, and adding them.

python tools/bench_store.py --rows 10000 100000
"""

import argparse
import json
import os
import random
import resource
import sys
import tempfile
from pathlib import Path

from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.intake import merge
from kernrec.store.measurement import Measurement


def main() -> int:
    """Print one JSON object per number of rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000])
    for rows in parser.parse_args().rows:
        with tempfile.TemporaryDirectory(prefix="kernrec-") as folder:
            print(json.dumps(merging(Path(folder), rows)), flush=True)
    return 0


def merging(folder: Path, rows: int) -> dict[str, float]:
    """What merging `rows` measurements takes; memory is the most so far of this process and of its children."""
    theirs, draw = folder / "theirs.duckdb", random.Random(1)
    problem = find_op("matmul").problem(m=64, n=32, k=16)
    usual: dict[str, object] = {"gpu": "h200-sxm", "kernel": "k", "kernel_hash": "a", "problem": problem}
    usual |= {"protocol_version": 1, "tier": "final", "measured_at": "2026-03-01", "outcome": "ok"}
    with Database.open(theirs, read_only=False, create=True) as database:
        database.add_measurements(
            Measurement.from_columns(
                usual
                | {"session": f"s{i // 1000}", "block": i % 1000 // 50, "position": i % 50, "config": {"i": i % 5000}}
                | {"latency_s": draw.random() + 1e-3, "latency_samples_s": [draw.random() + 1e-3 for _ in range(20)]}
            )
            for i in range(rows)
        )
    with Database.open(folder / "own.duckdb", read_only=False, create=True) as database:
        before = os.times()
        merge(database, theirs)
        after = os.times()
    return {
        "rows": rows,
        "file_mb": round(theirs.stat().st_size / 1e6, 1),
        "check_cpu_s": round(
            after.children_user + after.children_system - before.children_user - before.children_system, 2
        ),
        "add_cpu_s": round(after.user + after.system - before.user - before.system, 2),
        "check_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3),
        "add_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
    }


if __name__ == "__main__":
    sys.exit(main())
