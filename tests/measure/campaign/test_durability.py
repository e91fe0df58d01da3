"""Test that `kill -9` of the measuring process, and full disks, lose no acknowledged row."""

import multiprocessing
import os
import random
import signal
import threading
from multiprocessing.connection import Connection

import pytest

from tests.helpers import rig
from tests.helpers.depth import DEEP

pytestmark = pytest.mark.slow
CHILD_KILLS = 16 if DEEP else 6


@pytest.fixture(scope="module")
def server():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.helpers.rig"])
    return context


def _start(
    server: multiprocessing.context.ForkServerContext, *arguments: object
) -> tuple[multiprocessing.Process, Connection]:
    ours, theirs = server.Pipe(duplex=False)
    database, count, *rest = arguments
    process = server.Process(target=rig.acknowledge, args=(str(database), count, theirs, *rest))
    process.start()
    theirs.close()
    return process, ours


def _acks(pipe: Connection, most: int | None = None) -> list[int | str]:
    """Return the collector's messages until there are `most` of them or the collector has ended."""
    received: list[int | str] = []
    while most is None or len(received) < most:
        try:
            received.append(pipe.recv())
        except (EOFError, OSError):
            break
    return received


@pytest.mark.every(3)
def test_killed_child_loses_at_most_the_config_in_flight(tmp_path):
    random.seed(11)
    database, count = tmp_path / "k.duckdb", 400
    killed: list[int] = []
    pids: set[int] = set()

    def report(progress: rig.Progress) -> None:
        run = holder[0]
        process = run.session.client._process
        pid = process.pid if process else None
        if pid is not None and pid not in pids and len(killed) < CHILD_KILLS and random.random() < 0.3:
            pids.add(pid)
            killed.append(pid)
            threading.Timer(random.random() * 0.004, os.kill, (pid, signal.SIGKILL)).start()

    holder: list[rig.Campaign] = []
    with rig.Journal(database) as journal:
        holder.append(rig.campaign(journal, report))
        holder[0].run([rig.target(count)])
        rig.ingest(journal)
    by_config = rig.outcomes(database)
    crashed = [i for i, (outcome, _) in by_config.items() if outcome != "ok"]
    assert sorted(by_config) == list(range(count))
    assert len(rig.stored(database)) == count
    assert len(killed) == CHILD_KILLS
    assert len(crashed) <= CHILD_KILLS
    assert all(by_config[i] == ("crash", "the measuring process was killed by SIGKILL") for i in crashed)


@pytest.mark.parametrize("most_bytes", [80_000, 300_000])
def test_full_disk_ends_in_one_line_and_keeps_acknowledged_rows(server, tmp_path, most_bytes):
    database = tmp_path / "k.duckdb"
    process, pipe = _start(server, database, 200, most_bytes)
    *received, last = _acks(pipe)
    process.join()
    assert received
    assert isinstance(last, str)
    assert "\n" not in last
    assert "k.duckdb" in last
    for again in (set(received), set()):  # first the unclosed block is repeated, then nothing is left to do
        process, pipe = _start(server, database, len(received))
        *acknowledged, done = _acks(pipe)
        process.join()
        assert done == "done"
        assert set(acknowledged) == again
    assert set(received) <= set(rig.stored(database))
