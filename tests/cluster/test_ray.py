"""The same campaign on a real Ray cluster of this machine: nodes and drivers that are killed, and what is refused.

Skips where Ray is not installed (`pip install '.[ray]'`).
"""

import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernrec.measure.campaign.journal import journal_path
from kernrec.store import Database
from tests.helpers.command import run_here
from tests.helpers.recording import make_recording

CONFIGS = 100
OFTEN = """
from kernrec.cli import main
from kernrec.measure.campaign import early_ingest
from kernrec.cluster import shared_problems
early_ingest.EVERY_S = early_ingest._REST = 0.5
shared_problems._SLICE_S = 0.1
main()
"""
"""kernrec, whose rows enter the database every half second, and whose cards hand over a few rows at a time."""
HELD = """
import time
from kernrec.cluster import driver
driver.Driver._dismiss = lambda self: time.sleep(600)
"""
"""A driver that never ends by itself: whatever it has measured by then, it is killed before its cards may end."""


def command(folder: Path, address: str, held: bool = False) -> list[str]:
    recording = folder / "recorded.duckdb"
    if not recording.exists():
        make_recording(recording, CONFIGS, energy=False)
    replaying = ["--device", "replay", "--replay", str(recording), "--db", str(folder / "own.duckdb")]
    program = HELD + OFTEN if held else OFTEN
    return [sys.executable, "-c", program, "collect", *replaying, "--effort", "exhaustive", "--cluster", address]


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"HOME": str(folder)}


def acknowledged(folder: Path) -> set[tuple[object, object, object]]:
    """The rows in the driver's journal, by session, block and position; some have entered the database already."""
    try:
        lines = journal_path(folder / "own.duckdb").read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return set()
    rows = [record["row"] for record in map(json.loads, lines) if "row" in record]
    return {(row["session"], row["block"], row["position"]) for row in rows}


def moments(folder: Path) -> Counter[tuple[object, object, object]]:
    """The rows in the database."""
    if not (folder / "own.duckdb").exists():
        return Counter()
    with Database.open(folder / "own.duckdb") as opened:
        rows = opened.rows("measurement")
    return Counter((row["session"], row["block"], row["position"]) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(int(os.environ.get("KERNREC_KILLS", "4")), marks=pytest.mark.deep)])
def test_nodes_and_drivers_that_are_killed_lose_no_acknowledged_row(cluster: Any, kills: int, tmp_path: Path) -> None:
    draw = random.Random(int(os.environ.get("KERNREC_KILL_SEED", "0")))
    for number in range(kills):
        make_recording(tmp_path / "recorded.duckdb", CONFIGS, energy=False, size=64 + 8 * number)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    seen: set[tuple[object, object, object]] = set()
    for kill in range(kills):
        process = subprocess.Popen(
            command(tmp_path, cluster.address, held=True), env=environment(tmp_path), stderr=subprocess.DEVNULL
        )
        before = len(seen)
        while process.poll() is None and len(seen | acknowledged(tmp_path)) == before:
            time.sleep(0.05)
        time.sleep(draw.random())
        if kill % 2 == 0:
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=1))
            time.sleep(draw.random())
        assert process.poll() is None
        process.kill()
        process.wait()
        seen |= acknowledged(tmp_path) | moments(tmp_path).keys()
    done = subprocess.run(command(tmp_path, cluster.address), env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    there = moments(tmp_path)
    assert seen <= there.keys()
    assert set(there.values()) == {1}
    print(f"{kills} drivers killed, {(kills + 1) // 2} nodes, {len(seen)} acknowledged, {sum(there.values())} rows")
    again, closed = measured_twice(tmp_path)
    print(f"{kills * CONFIGS} configs; screened more than once: {again}, after their block had ended: {closed}")
    assert closed == 0


def measured_twice(folder: Path) -> tuple[int, int]:
    """Configs that were screened more than once; and those of them of which two blocks ended. Finals repeat by plan."""
    with Database.open(folder / "own.duckdb") as opened:
        rows = [row for row in opened.rows("measurement", tier="screen") if row["outcome"] == "ok"]
    every = Counter((row["problem_id"], row["config_id"]) for row in rows)
    ended = Counter((row["problem_id"], row["config_id"]) for row in rows if not row["block_open"])
    return sum(count > 1 for count in every.values()), sum(count > 1 for count in ended.values())


@pytest.mark.slow
@pytest.mark.deep
def test_a_node_whose_disk_is_full_is_named_and_its_work_goes_elsewhere(cluster: Any, tmp_path: Path) -> None:
    (small := tmp_path / "small").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        cluster.add_node(num_cpus=1, env_vars={"KERNREC_STATE": str(small)})
        cluster.add_node(num_cpus=1)
        done = subprocess.run(
            command(tmp_path, cluster.address), env=environment(tmp_path), capture_output=True, text=True
        )
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "no space left on device" in line]
    assert len(lines) == 1
    assert all(f"rtx3090 on {socket.gethostname()}: cannot write the journal {small}" in line for line in lines)
    assert set(moments(tmp_path).values()) == {1}
    with Database.open(tmp_path / "own.duckdb") as opened:
        rows = opened.rows("measurement", tier="screen")
    closed = Counter(row["config_id"] for row in rows if not row["block_open"])
    assert len(closed) == CONFIGS
    assert set(closed.values()) == {1}


@pytest.mark.slow
def test_a_second_campaign_on_a_cluster_is_refused_with_the_first_ones_name(cluster: Any, tmp_path: Path) -> None:
    from kernrec.cluster.ray_cluster import RayCluster

    cluster.add_node(num_cpus=1)
    first = RayCluster(cluster.address, tmp_path / "first.duckdb", replays=True)  # until it is closed
    try:
        second = subprocess.run(
            command(tmp_path, cluster.address), env=environment(tmp_path), capture_output=True, text=True
        )
    finally:
        first.close()
    assert second.returncode == 2
    assert f"a campaign runs on this cluster already (PID {os.getpid()}" in second.stderr
    assert "first.duckdb" in second.stderr


@pytest.mark.slow
def test_a_cluster_without_a_gpu_says_how_nodes_tell_of_theirs(cluster: Any, tmp_path: Path) -> None:
    arguments = ["collect", "--op", "matmul", "--shape", "m=64,n=64,k=64", "--cluster", cluster.address]
    done = subprocess.run(
        [sys.executable, "-m", "kernrec", *arguments], env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert re.search(r"none of its \d+ nodes has a GPU to measure on", done.stderr)


def test_without_ray_collecting_on_a_cluster_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    arguments = ["--op", "matmul", "--shape", "m=64,n=64,k=64", "--db", "own.duckdb", "--cluster", "auto"]
    done = run_here("collect", *arguments, cwd=tmp_path, home=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "kernrec: --cluster needs ray: install it with `pip install '.[ray]'`\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("somewhere", "--cluster 'somewhere': expected auto or host:port of the head node, such as 10.0.0.1:6379"),
        ("ray://10.0.0.1:10001", "expected auto or host:port of the head node"),
        ("127.0.0.1:99999", "expected auto or host:port of the head node"),
        ("127.0.0.1:1", "--cluster 127.0.0.1:1: nothing answers there (connection refused)"),
    ],
)
def test_an_address_that_is_none_or_does_not_answer_is_one_line(address: str, reason: str) -> None:
    from kernrec.cluster.ray_cluster import check_answers
    from kernrec.errors import UsageError

    with pytest.raises(UsageError) as raised:
        check_answers(address)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("silent", "reason"), [(True, "nothing answers there within 0.2 s"), (False, "the connection is closed at once")]
)
def test_an_address_that_listens_and_says_nothing_is_one_line(
    silent: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernrec.cluster import ray_cluster
    from kernrec.errors import UsageError

    def close_at_once() -> None:
        with server.accept()[0] as connection:
            connection.recv(1024)

    assert ray_cluster.CONNECT_S <= 10.0
    with socket.create_server(("127.0.0.1", 0)) as server:
        if silent:
            monkeypatch.setattr(ray_cluster, "CONNECT_S", 0.2)
        else:
            threading.Thread(target=close_at_once, daemon=True).start()
        with pytest.raises(UsageError) as raised:
            ray_cluster.check_answers(f"127.0.0.1:{server.getsockname()[1]}")
    assert reason in str(raised.value)
