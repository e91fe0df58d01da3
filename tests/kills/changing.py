"""Kill commands that change or share existing data: withdrawals, migrations, training and contributions."""

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

from kernrec.errors import KernrecError
from kernrec.store import Database, schema
from kernrec.store.exchange import CHECKED
from kernrec.store.query_file import query_file, wrong_entries
from kernrec.store.share.bundle import read_bundle, take_groups
from kernrec.store.share.place import Folder, place_at
from kernrec.store.share.push import check_place
from tests.helpers.recording import make_measured_database
from tests.helpers.sharing import measurements
from tests.helpers.simulated_library import in_this_machine
from tests.kills.forked_command import ForkedCommand

_ROWS = 400
"""Number of rows in each session."""
_OLD_SCHEMA = 4


def kill_withdraw(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill `kernrec db withdraw` of one of two sessions at random moments. Return counts as in `kill_add`. Wrong
    entries in the query file count as `lost`, and rows that were withdrawn twice as `doubled`."""
    whole = _make_sessions(folder / "whole.duckdb")

    def count(own: Path, counts: Counter[str]) -> None:
        with Database.open_checked(own) as database:
            retracted = Counter(str(row["measurement_id"]) for row in database.rows("retraction"))
            counts["lost"] += 2 * _ROWS - database.counts()["measurement"]
        counts["doubled"] += sum(retracted.values()) - len(retracted)
        counts["halved"] += len(retracted) not in (0, _ROWS)

    return kill_on_copies(folder, whole, ["db", "withdraw", "--row", "tuesday"], kills, seed, count)


def kill_migration(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill a command that migrates a database from an old schema, at random moments. Return counts as in `kill_add`,
    and `doubled` rows."""
    older = schema.migrations()[:_OLD_SCHEMA]
    with patch("kernrec.store.schema.migrations", lambda: older):
        whole = _make_sessions(folder / "whole.duckdb")

    def count(own: Path, counts: Counter[str]) -> None:
        with Database.open_checked(own, read_only=False) as database:
            rows = Counter((row["session"], row["position"]) for row in database.rows("measurement"))
            counts["lost"] += 2 * _ROWS - len(rows) + len(database.altered())
            counts["doubled"] += sum(rows.values()) - len(rows)

    return kill_on_copies(folder, whole, ["db", "info"], kills, seed, count)


def kill_train(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill `kernrec train` at random moments while it replaces a model of the same name. Return the number of `kills`
    before the command ended, and of `lost` and `unreadable` models."""
    from kernrec.model.learn.model_file import load

    make_measured_database(whole := folder / "whole.duckdb")
    command = ["train", "--op", "matmul"]
    ForkedCommand([*command, "--db", str(whole)], os.environ).succeed()

    def count(own: Path, counts: Counter[str]) -> None:
        cards = sorted((own.parent / "models").glob("*.json"))
        counts["lost"] += not cards
        for card in cards:
            load(card)

    return kill_on_copies(folder, whole, command, kills, seed, count, ["models"])


def kill_on_copies(
    folder: Path,
    whole: Path,
    command: Sequence[str],
    kills: int,
    seed: int,
    count: Callable[[Path, Counter[str]], None],
    beside: Sequence[str] = (),
) -> Counter[str]:
    """Start a `kernrec` command on a new copy of the database `whole` and the folders `beside`, and kill the command at
    a random moment, `kills` times. After each kill, `count` adds the defects of the copy to the counts. `count` raises
    `KernrecError` if the copy is unreadable."""
    draw, counts, length_s = random.Random(seed), Counter[str](), 0.0
    for number in range(-1, kills):
        shutil.rmtree(own := folder / "copy", ignore_errors=True)
        own.mkdir()
        shutil.copyfile(whole, own / "own.duckdb")
        if number % 2:  # give the copy a query file, which the command must renew
            with Database.open(own / "own.duckdb", read_only=False):
                pass
            query_file(own / "own.duckdb", Database.open)
        for name in beside:
            shutil.copytree(whole.parent / name, own / name)
        started_s = time.monotonic()
        process = ForkedCommand([*command, "--db", str(own / "own.duckdb")], os.environ)
        if number < 0:
            process.succeed()
            length_s = time.monotonic() - started_s
        process.wait(draw.random() * length_s)
        counts["kills"] += process.kill()
        try:
            counts["lost"] += wrong_entries(own / "own.duckdb", Database.open)
            count(own / "own.duckdb", counts)
        except KernrecError:
            counts["unreadable"] += 1
    return counts


def _make_sessions(path: Path) -> Path:
    with Database.open(path, read_only=False, create=True) as database:
        for session in ("monday", "tuesday"):
            database.add_measurements(measurements(session, _ROWS))
    return path


_CONFIGS = 4
_KINDS = ("--budget", f"{_CONFIGS}configs"), ("--budget", "0m")


def kill_contribute(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill `kernrec contribute` at random moments while it measures a few configs on a simulated GPU. Every second
    command only writes a bundle of earlier measurements. At the end, let one command finish.

    Returns:
        Counts: `kills` before the command ended, final `bundles`, final `rows` in bundles, `lost` rows that are in no
        bundle, `doubled` rows that are in two bundles, and `refused` bundles that fail the checks of an index.
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
            if number < 0:  # measure the run times first, even if the command fails
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
