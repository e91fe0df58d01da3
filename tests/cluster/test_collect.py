"""Test that several machines collect the same rows as one machine, and that a dead machine loses few rows."""

import json
from collections import Counter
from pathlib import Path

import pytest

from kernrec.cluster import driver
from kernrec.cluster.commands import collect_on
from kernrec.measure.campaign import device_session
from kernrec.measure.campaign.journal import waiting_measurements
from kernrec.measure.campaign.results import EFFORTS, Progress
from kernrec.measure.request import CollectRequest, CollectResult
from kernrec.store import Database
from tests.helpers.gpu_cluster import Event, GpuCluster, killed_at
from tests.helpers.recording import make_recording
from tests.helpers.sharing import measured_rows

pytestmark = pytest.mark.usefixtures("gpus_here")

CONFIGS = 30


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(device_session, "_FIRST_S", 0.1)
    monkeypatch.setattr(device_session, "_SHARE", 0.0)


def collect(
    folder: Path,
    machines: int,
    event: Event = lambda cluster, number: None,
    notes: list[str] | None = None,
    **more: object,
) -> tuple[CollectResult, list[dict[str, object]]]:
    recording, database = folder / "recorded.duckdb", folder / "own.duckdb"
    if not recording.exists():
        make_recording(recording, CONFIGS, energy=False)
    more = {"recording": recording, "effort": EFFORTS["quick"]} | more

    def report(progress: Progress) -> None:
        if notes is not None and progress.note:
            notes.append(progress.note)

    cluster = GpuCluster(folder, machines, event)
    result = collect_on(cluster, CollectRequest(None, database, **more), report)  # type: ignore[arg-type]
    return result, measured_rows(database)


def times_measured(rows: list[dict[str, object]], closed: bool = True) -> Counter[object]:
    return Counter(row["config_id"] for row in rows if not (closed and row["block_open"]))


def test_cluster_measures_every_config_once(tmp_path):
    result, rows = collect(tmp_path, 2)
    assert result.error is None
    assert result.stored == len(rows) == CONFIGS
    assert set(times_measured(rows).values()) == {1}
    best = result.results[0].best
    assert best is not None
    assert best.config["x"] == CONFIGS - 2  # larger x is faster, but x = CONFIGS - 1 cannot run
    assert not list(tmp_path.rglob("*.journal*"))


@pytest.mark.parametrize("moment", [3, 4, 6])
def test_dead_machine_loses_only_current_configs_and_a_new_one_takes_over(tmp_path, moment):
    notes: list[str] = []
    result, rows = collect(tmp_path, 1, killed_at(moment), notes)
    assert result.error is None
    assert any("the machine died" in note for note in notes)
    assert set(times_measured(rows).values()) == {1}
    assert len(times_measured(rows)) == CONFIGS
    assert len({row["session"] for row in rows}) == 2 if moment > 3 else 1


class Killed(BaseException):
    pass


@pytest.mark.every(3)
def test_killed_driver_resumes_with_all_rows(tmp_path):
    def die(cluster: GpuCluster, call: int) -> None:
        if call == 8:
            raise Killed

    with pytest.raises(Killed):
        collect(tmp_path, 2, die)
    acknowledged = waiting_measurements(tmp_path / "own.duckdb").measurements
    assert acknowledged
    result, rows = collect(tmp_path, 2)
    assert result.error is None
    assert result.leftover == acknowledged
    with Database.open(tmp_path / "own.duckdb") as opened:
        config_of = {row["config_id"]: json.loads(str(row["tunables"]))["x"] for row in opened.rows("config")}
    times = {config_of[config]: count for config, count in times_measured(rows).items()}
    assert len(times) == CONFIGS
    assert set(times.values()) == {1}  # no config was measured again
    moments = Counter((row["session"], row["block"], row["position"]) for row in rows)
    assert set(moments.values()) == {1}


@pytest.mark.every(3)
def test_restarted_driver_skips_configs_measured_by_another_run(tmp_path, monkeypatch):
    def die(cluster: GpuCluster, call: int) -> None:
        if (tmp_path / "own.duckdb").exists():
            raise Killed

    def times(rows: list[dict[str, object]]) -> Counter[tuple[object, object]]:
        return Counter((row["problem_id"], row["config_id"]) for row in rows)

    for size in (256, 512):
        make_recording(tmp_path / "recorded.duckdb", 12, energy=False, size=size)
    monkeypatch.setattr(device_session, "_FIRST_S", 20.0)
    monkeypatch.setattr(driver, "_STORE_S", 0.0)
    monkeypatch.setattr(driver, "_PAUSE", 0.0)
    with pytest.raises(Killed):
        collect(tmp_path, 1, die)
    entered = measured_rows(tmp_path / "own.duckdb")
    assert len(entered) == 12  # the rows of the first problem, which is complete
    assert not any(row["block_open"] for row in entered)
    monkeypatch.undo()
    result, rows = collect(tmp_path, 1)
    assert result.error is None
    assert times(entered).items() <= times([row for row in rows if not row["block_open"]]).items()
    assert len(times(rows)) == 2 * 12
