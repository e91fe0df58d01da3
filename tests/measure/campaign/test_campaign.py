"""Test that a campaign loses only one config to a crash, a hang or exhausted memory of the device."""

import json
from dataclasses import replace

import pytest

from kernrec.measure.campaign import device_session
from kernrec.measure.campaign.campaign import Campaign
from kernrec.measure.campaign.ingest import ingest
from kernrec.measure.campaign.journal import Journal
from kernrec.measure.campaign.results import CampaignSettings, Progress
from kernrec.measure.device.interface import MeasurementFailure
from kernrec.measure.worker.worker_client import Stopped, WorkerClient
from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.measurement import Measurement, Outcome
from tests.helpers.fault_injection import OPENING
from tests.helpers.rig import PROBLEM, campaign, collect, outcomes, stored, target, unclosed
from tests.helpers.sharing import measured_rows

here = pytest.mark.usefixtures("measured_here")


@pytest.mark.every(3)
@pytest.mark.slow
def test_each_kind_of_failure_affects_only_its_config(tmp_path, monkeypatch):
    monkeypatch.setattr(device_session, "LEAST_LIMIT_S", 2.0)
    ways = ["segfault", "abort", "hang", "deaf", "memory", "raise", "lost", "incorrect", "unwritten"]
    database = tmp_path / "k.duckdb"
    run = collect(database, target(2 * len(ways), {2 * i + 1: way for i, way in enumerate(ways)}))
    by_config = outcomes(database)
    assert stored(database) == list(range(2 * len(ways)))
    assert {by_config[2 * i][0] for i in range(len(ways))} == {"ok"}
    failed = {way: by_config[2 * i + 1] for i, way in enumerate(ways)}
    assert failed["segfault"] == ("crash", failed["segfault"][1])
    assert "SIGSEGV" in failed["segfault"][1]
    assert "SIGABRT" in failed["abort"][1]
    assert failed["hang"][0] == failed["deaf"][0] == "timeout"
    assert failed["memory"] == ("crash", "out of memory")
    assert failed["raise"] == ("crash", "RuntimeError: invalid argument")
    assert failed["lost"][0] == "crash"
    assert "illegal memory access" in failed["lost"][1]
    assert failed["incorrect"][0] == failed["unwritten"][0] == "incorrect"
    assert "7 elements" in failed["unwritten"][1]
    assert run.results[0].failures == {"crash": 5, "timeout": 2, "incorrect": 2}


@here
def test_block_measured_on_a_slowing_gpu_is_quarantined_and_repeated(tmp_path):
    database, notes = tmp_path / "k.duckdb", []
    collect(database, target(6, {3: "slow"}), lambda progress: notes.append(progress.note))
    rows = measured_rows(database)
    first, second = ([row for row in rows if row["block"] == block] for block in (0, 1))
    assert [len(first), len(second)] == [6, 6]
    assert {(row["outcome"], row["error"]) for row in first} == {
        ("quarantined", "reference kernels drifted: compute latency +5.0%")
    }
    assert {row["outcome"] for row in second} == {"ok"}
    assert {round(float(str(row["reference_latency"])), 6) for row in second} == {1.05}
    assert "reference kernels drifted: compute latency +5.0%; 6 measurements are repeated" in notes


@here
def test_changed_power_limit_is_detected_and_affected_rows_are_repeated(tmp_path):
    database, notes = tmp_path / "k.duckdb", []
    collect(database, target(6, {3: "limit"}), lambda progress: notes.append(progress.note))
    good, void = (measured_rows(database, outcome=outcome) for outcome in ("ok", "quarantined"))
    assert {row["power_limit_w"] for row in good} == {400.0}
    assert [len(good), len(void)] == [6, 6]
    assert "another program changed the GPU: power_limit_w default -> 400; 6 measurements are repeated" in notes


@here
def test_interrupted_config_is_measured_first_in_the_next_run(tmp_path):
    database = tmp_path / "k.duckdb"
    measured: list[int] = []

    def report(progress: Progress) -> None:
        if progress.measurement is not None:
            measured.append(progress.measurement.config["i"])

    with Journal(database) as journal:
        run = campaign(journal, report, stopping=lambda: len(measured) == 3)
        with pytest.raises(Stopped):
            run.run([target(6)])
        ingest(journal)
    assert measured == unclosed(database) == [0, 1, 2]
    with Database.open(database) as opened:  # rows of an interrupted block are used until new rows exist
        assert len(opened.rows("answer")) == 3
    again = collect(database, target(6), report)
    assert (again.results[0].earlier, measured[3:]) == (3, [0, 1, 2, 3, 4, 5])
    assert collect(database, target(6), report).results[0].measured == 0
    assert unclosed(database) == [0, 1, 2]


@here
@pytest.mark.parametrize("made", [{"power_limit_w": 200.0}, {"locked_sm_clock_hz": 1e9}, {"mig": True}])
def test_rows_measured_under_other_gpu_settings_are_not_reused(tmp_path, made):
    first = collect(tmp_path / "first.duckdb", target(2))
    assert first.results[0].measured == 2
    with Database.open(tmp_path / "first.duckdb") as database:
        configs = {row["config_id"]: json.loads(str(row["tunables"])) for row in database.rows("config")}
        rows = database.rows("measurement")
    with Database.open(tmp_path / "k.duckdb", read_only=False, create=True) as database:
        for row in rows:
            about = {"config": configs[row.pop("config_id")], "problem": PROBLEM} | made
            del row["measurement_id"], row["problem_id"]
            database.add_measurements(map(Measurement.from_columns, [row | about]))
    again = collect(tmp_path / "k.duckdb", target(2))
    assert (again.results[0].earlier, again.results[0].measured) == (0, 2)


def test_abandoning_a_problem_closes_its_measurement_block(tmp_path):
    class Refusing(WorkerClient):
        """Lose the worker after two rows. Its successor lacks the memory for the inputs."""

        rows = 0

        def request(self, limit_s: float, do: str, **items: object) -> object:
            if do == "prepare" and self.rows == 2:
                self.rows += 1
                raise MeasurementFailure(Outcome.CRASH, "no memory for the inputs")
            return super().request(limit_s, do, **items)

    client = Refusing(OPENING)

    def report(progress: Progress) -> None:
        if progress.measurement is not None:
            client.rows += 1
            if client.rows == 2:
                client.stop()

    other = find_op("elementwise").problem(n=128)
    plan = target(4)
    tasks = tuple(replace(task, problem=other) for task in plan.tasks)
    with Journal(tmp_path / "k.duckdb") as journal:
        targets = [plan, replace(plan, problem=other, tasks=tasks)]
        run = Campaign(client, journal, CampaignSettings("s"), report)
        run.run(targets)
        ingest(journal)
    with Database.open(tmp_path / "k.duckdb") as database:
        problems = {row["problem_id"]: row["key"] for row in database.rows("problem")}
        blocks = {(problems[row["problem_id"]], row["block"]) for row in database.rows("measurement")}
    assert [result.measured for result in run.results] == [2, 4]
    assert blocks == {(plan.problem.key, 0), (other.key, 1)}
