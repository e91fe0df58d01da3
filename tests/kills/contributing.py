"""Kill `kernrec contribute` at random moments, and count rows that are lost or in two bundles."""

import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

from kernrec.store import Database
from kernrec.store.exchange import CHECKED
from kernrec.store.share.bundle import read_bundle, take_groups
from kernrec.store.share.place import Folder, place_at
from kernrec.store.share.push import check_place
from tests.helpers.simulated_library import in_this_machine
from tests.kills.forked_command import ForkedCommand

_CONFIGS = 4
_KINDS = ("--budget", f"{_CONFIGS}configs"), ("--budget", "0m")


def kill_contribute(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill `kernrec contribute` at random moments while it measures a few configs on a simulated GPU. Every second
    command only writes a bundle of earlier measurements. At the end, let one command finish.

    Returns:
        Counts: `kills` before the command ended; `bundles`, and `rows` in them at the end; `lost`, rows of the database
        that are in no bundle; `doubled`, rows in two bundles; `refused`, bundles that fail the checks of an index.
    """
    draw = random.Random(seed)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("KERNREC_", "XDG_"))}
    variables |= {"HOME": str(folder), "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}
    counts: Counter[str] = Counter()
    lengths_s = [0.0, 0.0]
    with in_this_machine():
        for number in range(-2, kills):
            started_s = time.monotonic()
            process = ForkedCommand(["contribute", *_KINDS[number % 2]], variables, folder=folder)
            if number < 0:  # measure the run times first; a command with no rows to write may fail
                process.wait()
                lengths_s[number % 2] = time.monotonic() - started_s
                continue
            process.wait(draw.random() * lengths_s[number % 2])
            counts["kills"] += process.kill()
        ForkedCommand(["contribute", *_KINDS[0]], variables, folder=folder).succeed()
    index = folder / "contributed"
    for beside in index.rglob("*.part"):
        beside.unlink()
    report = check_place(Folder(index))
    counts["refused"] = len(report.bad)
    sent = Counter[tuple[object, ...]]()
    for path in sorted(index.glob("*/*.zip")):
        bundle = read_bundle(place_at(path))
        counts["bundles"] += 1
        (taken := folder / "taken").mkdir()
        take_groups([bundle], taken, path.name)
        sent.update(_moments(taken / CHECKED))
        shutil.rmtree(taken)
    with Database.open(folder / ".local/share/kernrec/contributed.duckdb") as database:
        there = {(row["session"], row["block"], row["position"]) for row in database.rows("measurement")}
    counts["rows"] = len(sent)
    counts["lost"] = len(there - sent.keys())
    counts["doubled"] = sum(sent.values()) - len(sent)
    return counts


def _moments(file: Path) -> list[tuple[object, ...]]:
    import duckdb

    with duckdb.connect(file, read_only=True) as connection:
        return connection.execute("SELECT session, block, position FROM measurement").fetchall()
