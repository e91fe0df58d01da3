"""Answers of problems with very many rows are kept when they are pulled, and are those that the log gives."""

import shutil
from pathlib import Path

import pytest

from kernrec import paths
from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.kept_answers import kept_problems
from kernrec.store.measurement import Measurement
from kernrec.store.measurement_log import MeasurementLog, evidence
from tests.helpers.reading import reading_here
from tests.helpers.sharing import GPU, KERNEL, PROBLEM, Person, measurement

pytestmark = pytest.mark.usefixtures("read_here")

OTHER = find_op("matmul").problem(m=512, n=512, k=512)


def rows_of(person: str, latency_s: float) -> list[Measurement]:
    """Of a problem that many measure and of one that few do; some failed."""
    rows = [
        measurement(session=person, position=i, config={"block_m": i + 1}, latency_s=latency_s * (1 + i), **more)
        for i, more in enumerate(
            (
                {"energy_j": 0.3},
                {"latency_low_s": 1e-3, "latency_high_s": 9e-3},
                {"power_limit_w": 350.0},
                {"locked_sm_clock_hz": 1.2e9},
                {"block_open": True},
                {"mig": True},
            )
        )
    ]
    failed = {"latency_s": None, "config": {"block_m": 99}, "session": person}
    rows += [measurement(position=10 + i, outcome=outcome, **failed) for i, outcome in enumerate(("crash", "timeout"))]
    return [*rows, measurement(session=person, position=20, problem=OTHER, latency_s=latency_s)]


def keeping(patch: pytest.MonkeyPatch) -> None:
    """From now on what is pulled of a problem with more than ten rows is kept."""
    patch.setattr("kernrec.store.share.pulled.KEEP_ABOVE", 10)


@pytest.fixture(scope="module")
def pulled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: a reader has pulled what three people pushed."""
    base = tmp_path_factory.mktemp("kept")
    (team := base / "team").mkdir()
    for number, person in enumerate(("ann", "ben", "cyd")):
        someone = Person(base / person)
        someone.measure(rows_of(person, 1e-3 * (1 + 0.2 * number)))
        someone.push(team)
    with reading_here(), pytest.MonkeyPatch.context() as patch:
        keeping(patch)
        assert Person(base / "reader").pull(team).measurements == 27
    return base


@pytest.fixture
def reader(pulled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Person:
    """The reader, for one test alone."""
    keeping(monkeypatch)
    shutil.copytree(pulled, tmp_path, dirs_exist_ok=True)
    return Person(tmp_path / "reader")


def log_of(person: Person, *, stored: bool) -> MeasurementLog:
    with person.at_work(), Database.open(paths.pulled(), read_only=False) as database:
        keys = [PROBLEM.key, OTHER.key]
        assert kept_problems(database._connection, GPU, keys) == ({PROBLEM.key} if stored else set())
        log = database.log(GPU, keys, title="team", signed=True)
        database.change(["DELETE FROM db.settled"])
        return log


def test_kept_answers_equal_the_log(reader: Person) -> None:
    stored, derived = log_of(reader, stored=True), log_of(reader, stored=False)
    assert stored.answers == derived.answers
    assert stored.failures == derived.failures
    assert set(stored.answers) == {PROBLEM.key, OTHER.key}
    assert len(stored.failures[PROBLEM.key]) == 2


def test_kept_answers_of_another_rule_are_ignored(reader: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernrec.store.kept_answers._rule", lambda: "another")
    assert log_of(reader, stored=False).answers.keys() == {PROBLEM.key, OTHER.key}


def test_kept_answers_are_ignored_after_rows_change(reader: Person, tmp_path: Path) -> None:
    assert Person(tmp_path / "ann").withdraw(tmp_path / "team", "true") == 9
    assert reader.pull(tmp_path / "team").withdrawn == 9
    after = log_of(reader, stored=True)
    assert after.answers == log_of(reader, stored=False).answers
    assert {len(answer.signers) for answer in evidence([after], [KERNEL], PROBLEM.key).measured} == {2}
