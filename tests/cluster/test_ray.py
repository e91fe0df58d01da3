"""Test campaigns on a real Ray cluster on this machine, including killed nodes and drivers."""

import json
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from kernrec.measure.campaign.journal import journal_path
from tests.helpers.command import run_here
from tests.helpers.recording import make_recording
from tests.helpers.sharing import measured_rows

CONFIGS = 100
OFTEN = """
from kernrec.cli import main
from kernrec.cluster import driver
driver._STORE_S = 0.5
main()
"""
"""Program that runs kernrec, but stores rows every half second."""
HELD = """
import os
import sys
import time
from pathlib import Path
from kernrec.cluster import driver, ray_cluster
from kernrec.cluster.gpu_actor import GpuActor
from kernrec.measure.campaign.journal import Journal

events, gpu_rows, driver_rows = Path(sys.argv.pop(1)), int(sys.argv.pop(1)), int(sys.argv.pop(1))

def hold(records_of, rows, event, ready, until):
    append, written = records_of.append, []

    def counted(journal, *records):
        append(journal, *records)
        written.extend([r["row"]["session"], r["row"]["block"], r["row"]["position"]] for r in records if "row" in r)
        if len(written) >= rows and ready() and not until.exists():
            import json
            part = event.with_suffix(".part")
            part.write_text(json.dumps({"pid": os.getpid(), "written": written}))
            part.rename(event)
            while not until.exists():
                time.sleep(0.01)

    records_of.append = counted

class HeldCard(GpuActor):
    def open(self, request):
        import ray
        node = ray.get_runtime_context().get_node_id()
        hold(type(self), gpu_rows, events / f"gpu-{node}", lambda: True, events / "go")
        return super().open(request)

if gpu_rows:
    ray_cluster.GpuActor = HeldCard
    lose = driver.Driver._lose

    def lost(self, name, why):
        lose(self, name, why)
        (events / "lost").touch()

    driver.Driver._lose = lost
hold(Journal, driver_rows, events / "driver", lambda: not gpu_rows or (events / "lost").exists(), events / "never")
"""
"""Driver program that stops after `driver_rows` rows, and writes an event file. With `gpu_rows`, each GPU stops after
`gpu_rows` rows until a file `go` exists. Then the driver stops only after it has lost a GPU."""


def command(folder: Path, address: str, held: tuple[Path, int, int] | None = None) -> list[str]:
    """Return the command of a campaign. `held` has the arguments of `HELD`: events, gpu_rows, driver_rows."""
    recording = folder / "recorded.duckdb"
    if not recording.exists():
        make_recording(recording, CONFIGS, energy=False)
    replaying = ["--replay", str(recording), "--db", str(folder / "own.duckdb")]
    program = [HELD + OFTEN, *map(str, held)] if held else [OFTEN]
    return [sys.executable, "-c", *program, "collect", *replaying, "--strategy", "exhaustive", "--cluster", address]


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"HOME": str(folder)}


def completed(folder: Path, words: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, env=environment(folder), capture_output=True, text=True)


def acknowledged(folder: Path) -> set[tuple[object, object, object]]:
    """Return (session, block, position) of each row in the driver's journal, even if it is already in the database."""
    path = journal_path(folder / "own.duckdb")
    if not path.exists():
        return set()
    with closing(sqlite3.connect(path)) as journal:
        rows = [json.loads(row)["row"] for (row,) in journal.execute("SELECT content FROM record WHERE measured")]
    return {(row["session"], row["block"], row["position"]) for row in rows}


def moments(folder: Path) -> Counter[tuple[object, object, object]]:
    return Counter((row["session"], row["block"], row["position"]) for row in measured_rows(folder / "own.duckdb"))


def happened(event: Path, process: "subprocess.Popen[bytes]") -> Any:
    while not event.exists():
        assert process.poll() is None, f"the driver ended before {event.name}"
        time.sleep(0.01)
    return json.loads(event.read_text() or "null")


def lose_a_node(cluster: Any, events: Path, process: "subprocess.Popen[bytes]") -> None:
    """Kill a node whose GPU is waiting after some rows, and add a new node."""
    while not (gpus := list(events.glob("gpu-*[!t]"))):
        assert process.poll() is None, "the driver ended before a gpu had measured"
        time.sleep(0.01)
    gpu = happened(gpus[0], process)
    (node,) = [node for node in cluster.worker_nodes if node.node_id == gpus[0].name.removeprefix("gpu-")]
    cluster.remove_node(node, allow_graceful=False)
    with suppress(ProcessLookupError):
        os.kill(gpu["pid"], signal.SIGKILL)
    happened(events / "lost", process)
    (events / "go").touch()
    cluster.add_node(num_cpus=1)


@pytest.mark.every(4)
@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(int(os.environ.get("KERNREC_KILLS", "6")), marks=pytest.mark.deep)])
def test_killed_nodes_and_drivers_lose_no_rows(cluster, kills, tmp_path):
    """Nodes and drivers wait for their kill after a random number of rows, and each of these rows must be kept once."""
    draw = random.Random(int(os.environ.get("KERNREC_KILL_SEED", "0")))
    problems = 1 + kills
    for number in range(problems):
        make_recording(tmp_path / "recorded.duckdb", CONFIGS, energy=False, size=64 + 8 * number)
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    seen: set[tuple[object, object, object]] = set()
    for kill in range(kills):
        (events := tmp_path / f"events-{kill}").mkdir()
        of_gpu = draw.randint(1, CONFIGS // 4) if kill % 2 == 0 else 0
        held = (events, of_gpu, 1 if of_gpu else draw.randint(1, CONFIGS // 2))
        process = subprocess.Popen(
            command(tmp_path, cluster.address, held), env=environment(tmp_path), stderr=subprocess.DEVNULL
        )
        if of_gpu:
            lose_a_node(cluster, events, process)
        written = happened(events / "driver", process)["written"]
        process.kill()
        process.wait()
        there = acknowledged(tmp_path) | moments(tmp_path).keys()
        assert {tuple(moment) for moment in written} <= there
        seen |= there
        assert len(screened(tmp_path)) < problems * CONFIGS
    done = completed(tmp_path, command(tmp_path, cluster.address))
    assert done.returncode == 0, done.stderr
    there = moments(tmp_path)
    assert seen <= there.keys()
    assert set(there.values()) == {1}
    ended = screened(tmp_path)
    assert len(ended) == problems * CONFIGS
    assert set(ended.values()) == {1}
    print(
        f"{kills} drivers killed, {(kills + 1) // 2} nodes, {len(seen)} rows before, {sum(there.values())} in the end"
    )


def screened(folder: Path) -> Counter[tuple[object, object]]:
    """Count the first-stage measurements of each config in completed blocks. Later stages repeat configs."""
    rows = measured_rows(folder / "own.duckdb", tier="screen")
    return Counter((row["problem_id"], row["config_id"]) for row in rows if not row["block_open"])


@pytest.mark.every(3)
@pytest.mark.slow
def test_second_campaign_on_a_cluster_is_refused_with_the_name_of_the_first(cluster, tmp_path):
    from kernrec.cluster.ray_cluster import RayCluster

    cluster.add_node(num_cpus=1)
    first = RayCluster(cluster.address, tmp_path / "first.duckdb", replays=True)  # locks the cluster until closed
    try:
        second = completed(tmp_path, command(tmp_path, cluster.address))
    finally:
        first.close()
    assert second.returncode == 2
    assert f"a campaign runs on this cluster already (PID {os.getpid()}" in second.stderr
    assert "first.duckdb" in second.stderr


@pytest.mark.every(3)
@pytest.mark.slow
def test_cluster_without_gpus_explains_how_nodes_announce_them(cluster, tmp_path):
    arguments = ["collect", "--op", "matmul", "--shape", "m=64,n=64,k=64", "--cluster", cluster.address]
    done = completed(tmp_path, [sys.executable, "-m", "kernrec", *arguments])
    assert done.returncode == 2
    assert re.search(r"none of its \d+ nodes has a GPU to measure on", done.stderr)


def test_collect_without_ray_names_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # makes `import ray` fail
    arguments = ["--op", "matmul", "--shape", "m=64,n=64,k=64", "--db", "own.duckdb", "--cluster", "auto"]
    done = run_here("collect", *arguments, cwd=tmp_path, home=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "kernrec: --cluster needs ray: install it with `pip install '.[ray]'`\n"
    assert list(tmp_path.iterdir()) == []


def test_invalid_or_unreachable_address_is_reported_in_one_line(refuses):
    from kernrec.cluster.ray_cluster import check_answers

    refuses(check_answers, ["somewhere", "ray://10.0.0.1:10001", "127.0.0.1:99999", "127.0.0.1:1"])


@pytest.mark.parametrize(
    ("silent", "reason"), [(True, "nothing answers there within 0.2 s"), (False, "the connection is closed at once")]
)
def test_silent_address_is_reported_in_one_line(silent, reason, monkeypatch):
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
