"""Measure problems, train a model on them, and evaluate it on held-out problems.

    python examples/measure_and_learn.py              measures on the GPU of this machine for ten minutes
    python examples/measure_and_learn.py --replay recorded.duckdb

With `--replay`, the measurements are taken from an existing database, so you can try the example without a GPU. The
program needs the extras `measure` and `train`, and `cuda13` on a GPU.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def kernrec(*arguments: str) -> None:
    """Run a command of kernrec and show its output."""
    print("$ kernrec", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "kernrec", *arguments], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--op", default="matmul")
    parser.add_argument("--budget", default="10m", help="time (10m) or number of configs (100configs)")
    parser.add_argument("--replay", type=Path, help="database whose measurements are replayed")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        database = f"{folder}/measured.duckdb"
        source = ["--replay", str(options.replay)] if options.replay else ["--op", options.op]
        kernrec("collect", "--budget", options.budget, "--db", database, *source)
        kernrec("db", "info", "--db", database)
        # kernrec does not learn from replayed rows, so train on the original database. Copy it, because models are
        # stored next to the database.
        if options.replay:
            database = shutil.copy(options.replay, f"{folder}/recorded.duckdb")
        kernrec("train", "--op", options.op, "--db", database)


if __name__ == "__main__":
    main()
