"""`kill -9` of commands that write to a database, at random moments: what is lost, and what is done again.

    python tools/kills.py --what collect,merge,import,push,pull --kills 20
    python tools/kills.py --minutes 30 --tally FILE    rounds of 20 kills of each, added to what FILE counts

`collect`: a recording of a made-up kernel is replayed; collector, worker process, journal and database are those of
every day, only the card is a recording. The collector is killed again and again, at a random moment after its first
measurement, then run to its end. Lost is a row that was in the journal when its collector was killed and is in the
database nowhere at the end. `--kills 0` runs the same campaign without a kill.

`merge` and `import`: `kernrec db merge` of a database and `kernrec db import` of a bundle are killed at a random moment
of the time that they take. Afterwards the database has to have its own rows, and all of the others or none.

`push` and `pull`: see tools/kills_of_sharing.py.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kills_of_sharing
import numpy as np
from forked_command import ForkedCommand

from kernrec.errors import KernrecError
from kernrec.measure.campaign.journal import journal_path
from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.measurement import Measurement, Tier

_BAD = ("lost", "doubled", "halved", "unreadable")
"""Counts of what must not happen."""

Moment = tuple[str, int, int]
"""Session, block and position: they name a row."""


@dataclass(frozen=True)
class CollectKills:
    """What kills of a collector cost."""

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


@dataclass(frozen=True)
class AddKills:
    """What kills of a merge or an import did."""

    kills: int
    """Commands that were killed before they ended."""
    ended: int
    """Commands that ended before they could be killed."""
    added: int
    """Killed commands that had added everything."""
    lost: int
    """Rows of the database that are missing or changed after a kill."""
    halved: int
    """Kills after which some of the other rows were there and some not."""
    unreadable: int
    """Kills after which the database could not be opened."""
    left_mb: float
    """Temporary files that the killed commands left, on average."""


def main() -> int:
    """Print what kills did as JSON, a line for each command; exit status 1 if a row was lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--what", default="collect,merge,import,push,pull")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--configs", type=int, default=3000, help="of the recording; rows that are merged or imported")
    parser.add_argument("--latest", type=float, default=1.0, help="of collect: seconds after the first row, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0.0, help="rounds of --kills begin for so long")
    parser.add_argument("--tally", type=Path, help="file with a line for each round, also of earlier runs")
    given = parser.parse_args()
    rounds = given.tally.read_text(encoding="utf-8").splitlines() if given.tally and given.tally.exists() else []
    end_s = time.monotonic() + 60 * given.minutes
    first = True
    while first or time.monotonic() < end_s:
        for what in given.what.split(","):
            if first or time.monotonic() < end_s:
                seed = given.seed + len(rounds)
                with tempfile.TemporaryDirectory(prefix="kernrec-") as name:
                    done = _kill(Path(name), what, given, seed)
                rounds.append(json.dumps({"what": what, "seed": seed, **vars(done)}))
                print(rounds[-1], flush=True)
                if given.tally:
                    with given.tally.open("a", encoding="utf-8") as file:
                        file.write(rounds[-1] + "\n")
        first = False
    return _sum_up([json.loads(line) for line in rounds])


def _kill(folder: Path, what: str, given: argparse.Namespace, seed: int) -> Any:
    if what == "collect":
        return kill_collect(folder, given.kills, given.configs, given.latest, seed)
    if what in ("push", "pull"):
        return kills_of_sharing.kill(folder, what, given.kills, given.configs, seed)
    return kill_add(folder, what, given.kills, given.configs, seed)


def _sum_up(rounds: list[dict[str, Any]]) -> int:
    """Print what all rounds of each command did together; exit status 1 if a row was lost."""
    bad = 0
    for what in sorted({each["what"] for each in rounds}):
        these = [each for each in rounds if each["what"] == what]
        sums = {name: sum(each.get(name, 0) for each in these) for name in ("kills", "ended", *_BAD)}
        bad += sum(sums[name] for name in _BAD)
        again = sum(each.get("screened_again", 0) for each in these)
        largest = max(each.get("largest_block", 0) for each in these)
        print(json.dumps({"all": what, **sums, "screened_again": again, "largest_block": largest}), flush=True)
    return 1 if bad else 0


def kill_collect(folder: Path, kills: int, configs: int, latest_s: float, seed: int) -> CollectKills:
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
        process = ForkedCommand(_collecting(recording, database), os.environ)
        while process.status is None and not _journaled(database):
            time.sleep(0.01)
        process.wait(draw.random() * latest_s)
        process.kill()
        acknowledged |= _journaled(database)
    if ForkedCommand(_collecting(recording, database), os.environ).wait() != 0:
        raise SystemExit("the last collector failed")
    return _cost(database, kills, configs, acknowledged)


def kill_add(folder: Path, what: str, kills: int, rows: int, seed: int) -> AddKills:
    """Kill `kernrec db merge` or `kernrec db import`.

    Args:
        folder: for the databases.
        what: `merge` or `import`.
        kills: how many commands are started.
        rows: that they add.
        seed: of the moments.
    """
    draw = random.Random(seed)
    theirs, whole, own = _recording(folder / "theirs.duckdb", rows), folder / "whole.duckdb", folder / "own.duckdb"
    _recording(whole, 500, kernel="own")
    (temporary := folder / "temporary").mkdir()
    variables = os.environ | {"TMPDIR": str(temporary)}
    source = theirs
    if what == "import":
        source = folder / "theirs.zip"
        ForkedCommand(["db", "export", "--bundle", str(source), "--db", str(theirs)], variables).wait()
    with Database.open(whole) as database:
        keys = _keys(database)
    command = ["db", what, str(source), "--db", str(own), *(["--untrusted"] if what == "import" else [])]
    counts: Counter[str] = Counter()
    length_s, left = 0.0, 0
    for number in range(-1, kills):
        for suffix in ("", ".wal"):
            own.with_name(own.name + suffix).unlink(missing_ok=True)
        shutil.copyfile(whole, own)
        started_s = time.monotonic()
        process = ForkedCommand(command, variables)
        if number < 0:  # how long it takes
            assert process.wait() == 0
            length_s = time.monotonic() - started_s
            continue
        process.wait(draw.random() * length_s)
        counts["kills" if process.kill() else "ended"] += 1
        left += sum(file.stat().st_size for file in temporary.rglob("*") if file.is_file())
        shutil.rmtree(temporary)
        temporary.mkdir()
        try:
            with Database.open_checked(own) as database:
                there = _keys(database)
                counts["lost"] += len(keys - there) + len(database.altered())
        except KernrecError:
            counts["unreadable"] += 1
            continue
        counts["added"] += len(there - keys) == rows
        counts["halved"] += 0 < len(there - keys) < rows
    numbers = {name: counts[name] for name in ("kills", "ended", "lost", "halved", "unreadable")}
    return AddKills(**numbers, added=counts["added"] - counts["ended"], left_mb=round(left / max(1, kills) / 1e6, 1))


def _keys(database: Database) -> set[str]:
    return {str(key) for (key,) in database.query("SELECT measurement_id FROM db.measurement")}


def _collecting(recording: Path, database: Path) -> list[str]:
    command = ["collect", "--device", "replay", "--effort", "exhaustive"]
    return [*command, "--replay", str(recording), "--db", str(database)]


def _journaled(database: Path) -> set[Moment]:
    """The rows in the journal, a torn last line apart."""
    try:
        lines = journal_path(database).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return set()
    rows = [record["row"] for record in map(json.loads, lines) if "row" in record]
    return {(row["session"], row["block"], row["position"]) for row in rows}


def _cost(database: Path, kills: int, configs: int, acknowledged: set[Moment]) -> CollectKills:
    with Database.open(database) as opened:
        rows = opened.rows("measurement")
    there = {(str(row["session"]), int(str(row["block"])), int(str(row["position"]))) for row in rows}
    screens = Counter(str(row["config_id"]) for row in rows if row["tier"] == Tier.SCREEN)
    open_blocks = Counter((row["session"], row["block"]) for row in rows if row["block_open"])
    return CollectKills(
        kills=kills,
        rows=len(rows),
        configs=configs,
        lost=len(acknowledged - there),
        open_rows=sum(open_blocks.values()),
        screened_again=sum(count > 1 for count in screens.values()),
        largest_block=max(open_blocks.values(), default=0),
    )


def _recording(path: Path, configs: int, kernel: str = "recorded") -> Path:
    draw = np.random.default_rng(5)
    problem = find_op("matmul").problem(m=1024, n=1024, k=1024)
    rows = []
    for x in range(configs):
        samples = 1e-3 * (1.0 + abs(x - configs / 3) / configs) * (1.0 + 0.003 * np.abs(draw.standard_normal(16)))
        latency_s = float(np.median(samples))
        row: dict[str, object] = {
            "gpu": "rtx3090",
            "kernel": kernel,
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
