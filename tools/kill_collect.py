"""`kill -9` of `kernrec collect` at random moments: what is lost, and what is measured again.

    python tools/kill_collect.py --kills 20 --configs 3000

A recording of a made-up kernel is replayed: collector, worker process, journal and database are those of every day;
only the card is a recording. The collector is killed again and again, at a random moment after its first
measurement, then run to its end. Lost is a row that was in the journal when its collector was killed and is in the
database nowhere at the end.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernrec.measure.campaign.journal import journal_path
from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.measurement import Measurement, Tier

Moment = tuple[str, int, int]
"""Session, block and position: they name a row."""


@dataclass(frozen=True)
class Kills:
    """What kills cost."""

    kills: int
    rows: int
    """Of the database at the end."""
    configs: int
    lost: int
    """Rows that had been acknowledged and are not there."""
    open_rows: int
    """Rows whose block a kill left open."""
    screened_again: int
    """Configs that were screened more than once."""
    largest_block: int
    """Rows of the largest open block."""


def main() -> int:
    """Print what kills cost as JSON; exit status 1 if a row was lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--configs", type=int, default=3000)
    parser.add_argument("--latest", type=float, default=1.0, help="seconds after the first row, at most")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kernrec-") as folder:
        done = kill_collect(Path(folder), arguments.kills, arguments.configs, arguments.latest, arguments.seed)
    print(json.dumps(vars(done), indent=1))
    return 1 if done.lost else 0


def kill_collect(folder: Path, kills: int, configs: int, latest_s: float, seed: int) -> Kills:
    """Kill collectors that replay a recording of `configs` configs, then let one finish.

    Args:
        folder: for the recording and the database.
        kills: how many.
        configs: of the recording.
        latest_s: after its first row, a collector is killed within so many seconds.
        seed: of the moments.
    """
    draw = random.Random(seed)
    recording, database = _recording(folder / "recorded.duckdb", configs), folder / "own.duckdb"
    acknowledged: set[Moment] = set()
    for _ in range(kills):
        process = _start(recording, database)
        while process.poll() is None and not _journaled(database):
            time.sleep(0.01)
        time.sleep(draw.random() * latest_s)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        acknowledged |= _journaled(database)
    if _start(recording, database).wait() != 0:
        raise SystemExit("the last collector failed")
    return _cost(database, kills, configs, acknowledged)


def _start(recording: Path, database: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "kernrec", "collect", "--device", "replay", "--effort", "exhaustive"]
    command += ["--replay", str(recording), "--db", str(database)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def _journaled(database: Path) -> set[Moment]:
    """The rows in the journal, a torn last line apart."""
    try:
        lines = journal_path(database).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return set()
    rows = [record["row"] for record in map(json.loads, lines) if "row" in record]
    return {(row["session"], row["block"], row["position"]) for row in rows}


def _cost(database: Path, kills: int, configs: int, acknowledged: set[Moment]) -> Kills:
    with Database.open(database) as opened:
        rows = opened.rows("measurement")
    there = {(str(row["session"]), int(str(row["block"])), int(str(row["position"]))) for row in rows}
    screens = Counter(str(row["config_id"]) for row in rows if row["tier"] == Tier.SCREEN)
    open_blocks = Counter((row["session"], row["block"]) for row in rows if row["block_open"])
    return Kills(
        kills=kills,
        rows=len(rows),
        configs=configs,
        lost=len(acknowledged - there),
        open_rows=sum(open_blocks.values()),
        screened_again=sum(count > 1 for count in screens.values()),
        largest_block=max(open_blocks.values(), default=0),
    )


def _recording(path: Path, configs: int) -> Path:
    draw = np.random.default_rng(5)
    problem = find_op("matmul").problem(m=1024, n=1024, k=1024)
    rows = []
    for x in range(configs):
        samples = 1e-3 * (1.0 + abs(x - configs / 3) / configs) * (1.0 + 0.003 * np.abs(draw.standard_normal(16)))
        latency_s = float(np.median(samples))
        row: dict[str, object] = {
            "gpu": "rtx3090",
            "kernel": "recorded",
            "kernel_hash": "0123456789abcdef",
            "config": {"x": x},
        }
        row |= {"problem": problem, "protocol_version": 1, "tier": "final", "session": "then"}
        row |= {"measured_at": "2026-01-01T00:00:00", "outcome": "ok", "latency_s": latency_s}
        row |= {"latency_samples_s": samples.tolist(), "power_w": 250.0, "energy_j": 250.0 * latency_s}
        rows.append(row)
    with Database.open(path, read_only=False, create=True) as database:
        database.add_measurements(map(Measurement.from_columns, rows))
    return path


if __name__ == "__main__":
    sys.exit(main())
