"""Test that the query file matches its database and is never used for another state of the database."""

import shutil
from pathlib import Path

import pytest

from kernrec import paths
from kernrec.op import find_op
from kernrec.store import Database, Stack
from kernrec.store.connection import is_open
from kernrec.store.marks import file_state
from kernrec.store.measurement import Measurement
from kernrec.store.measurement_log import MeasurementLog, evidence
from kernrec.store.query_file import query_file, wrong_entries
from tests.helpers.command import run_here
from tests.helpers.reading import reading_here
from tests.helpers.sharing import GPU, HASH, KERNEL, PROBLEM, Person, measurement, store_measurements

pytestmark = pytest.mark.usefixtures("read_here")

OTHER = find_op("matmul").problem(m=512, n=512, k=512)


def rows_of(person: str, latency_s: float) -> list[Measurement]:
    """Return rows about two problems, with energy, intervals, limits, clocks and failures."""
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


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    base = tmp_path_factory.mktemp("shared")
    (team := base / "team").mkdir()
    for number, person in enumerate(("ann", "ben", "cyd")):
        someone = Person(base / person)
        someone.measure(rows_of(person, 1e-3 * (1 + 0.2 * number)))
        someone.push(team)
    with reading_here():
        assert Person(base / "reader").pull(team).measurements == 27
    return base


@pytest.fixture
def reader(shared, tmp_path):
    shutil.copytree(shared, tmp_path, dirs_exist_ok=True)
    return Person(tmp_path / "reader")


@pytest.fixture
def own(tmp_path, profile, monkeypatch):
    monkeypatch.setenv("KERNREC_DB", str(path := tmp_path / "own.duckdb"))
    with Database.open(path, read_only=False, create=True) as database:
        database.add_measurements(rows_of("ann", 1e-3))
        database.add_profiles([profile(registers=3)])
        database.caches = True
    assert file_of(path).exists()
    return path


def file_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.query")


def add_row(path: Path, problem=PROBLEM) -> None:
    with Database.open(path, read_only=False) as database:
        database.add_measurements([measurement(session="new", config={"block_m": 77}, problem=problem)])


def answers(stack: Stack) -> list[object]:
    profiles = stack.profiles(KERNEL, HASH, 89)
    return [
        *(stack.evidence(GPU, each.op, [KERNEL], each.key) for each in (PROBLEM, OTHER)),
        {launch: (table.variant_keys, table.counts.tolist()) for launch, table in profiles.items()},
        stack.measurements(),
        stack.mark(),
        list(stack.kernels()),
    ]


def assert_opens_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Database, "open", lambda *_, **__: pytest.fail("the database is opened"))


def assert_equal_logs(path: Path, signed: bool) -> MeasurementLog:
    keys = [PROBLEM.key, OTHER.key]
    with Database.open(path) as database:
        derived = database.log(GPU, keys, signed=signed)
    for key in keys:
        log = query_file(path, Database.open).log(GPU, key, "")
        for rows, expected in ((log.answers, derived.answers), (log.failures, derived.failures)):
            assert repr(rows.get(key)) == repr(expected.get(key))  # comparing the texts also compares the types
    return derived


def test_query_reads_the_query_file_and_opens_no_database(own, monkeypatch):
    expected = answers(Stack())
    assert [len(each.measured) for each in expected[:2]] == [5, 1]
    assert len(expected[0].failed) == 2
    assert_opens_no_database(monkeypatch)
    assert answers(Stack()) == expected


@pytest.mark.every(4)
def test_query_file_has_the_same_rows_as_the_database(own, reader):
    assert len(assert_equal_logs(own, signed=False).failures[PROBLEM.key]) == 2
    with reader.at_work():
        assert file_of(paths.pulled()).exists()
        log = assert_equal_logs(paths.pulled(), signed=True)
    assert {len(answer.signers) for answer in evidence([log], [KERNEL], PROBLEM.key).measured} == {3}


@pytest.mark.every(2)
def test_withdrawn_rows_are_no_longer_used(reader, tmp_path):
    assert Person(tmp_path / "ann").withdraw(tmp_path / "team", "true") == 9
    assert reader.pull(tmp_path / "team").withdrawn == 9
    with reader.at_work():
        log = assert_equal_logs(paths.pulled(), signed=True)
    assert {len(answer.signers) for answer in evidence([log], [KERNEL], PROBLEM.key).measured} == {2}


@pytest.fixture
def derived(monkeypatch):
    """Return a list that gets the keys of the problems whose rows are read from a database."""
    keys: list[str] = []
    real = Database.log
    monkeypatch.setattr(
        Database, "log", lambda self, gpu, some, **more: keys.extend(some) or real(self, gpu, some, **more)
    )
    return keys


def test_adding_a_row_renews_the_query_file(own, monkeypatch, derived):
    add_row(own, OTHER)
    assert sorted(derived) == sorted([OTHER.key, PROBLEM.key])
    assert_equal_logs(own, signed=False)
    assert_opens_no_database(monkeypatch)
    assert Stack().measurements() == 10


def test_query_file_of_a_large_database_is_filled_on_demand(own, monkeypatch, derived):
    expected = answers(Stack())
    monkeypatch.setattr("kernrec.store.query_file._TOGETHER", 0)
    file_of(own).unlink()
    assert answers(Stack()) == expected
    assert derived == [PROBLEM.key, OTHER.key]
    assert wrong_entries(own, Database.open) == 0
    with monkeypatch.context() as patch:
        assert_opens_no_database(patch)
        assert answers(Stack()) == expected
    derived.clear()
    add_row(own)
    assert derived == []
    assert len(answers(Stack())[0].measured) == 6
    assert derived == [PROBLEM.key, OTHER.key]


def test_query_file_entry_includes_rows_added_before_it_is_computed(own, monkeypatch):
    monkeypatch.setattr("kernrec.store.query_file._TOGETHER", 0)
    file_of(own).unlink()
    before = query_file(own, Database.open)
    add_row(own)
    assert len(before.log(GPU, PROBLEM.key, "own").answers[PROBLEM.key]) == 6


def test_answers_are_current_if_a_writer_did_not_renew_the_query_file(own, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("kernrec.store.database.write_cache", lambda *_: None)
        add_row(own)
    assert len(answers(Stack())[0].measured) == 6


def test_query_file_includes_rows_of_a_writer_that_waited_for_the_lock(own, monkeypatch):
    late = [own]

    def add_late_row(path: Path) -> str:
        if late and not is_open(path):
            add_row(late.pop())
        return file_state(path)

    with Database.open(own, read_only=False) as database:
        database.add_measurements([measurement(session="first", config={"block_m": 78})])
        monkeypatch.setattr("kernrec.store.database.file_state", add_late_row)
    assert not late
    assert wrong_entries(own, Database.open) == 0
    assert len(answers(Stack())[0].measured) == 7


def test_another_process_that_changes_the_database_is_noticed(own):
    before = file_of(own).read_bytes()
    add_row(own)
    file_of(own).write_bytes(before)
    assert len(answers(Stack())[0].measured) == 6


@pytest.mark.every(3)
def test_damaged_files_are_written_again(own):
    expected, whole = answers(Stack()), file_of(own).read_bytes()
    size = len(whole)
    damaged = [
        whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :] for place in range(0, size, size // 12)
    ]
    damaged += [whole[:-1], whole[: size // 2], b"", b"\0" * 64, whole + whole[-8:]]
    for content in damaged:
        file_of(own).write_bytes(content)
        assert answers(Stack()) == expected


def test_verify_deletes_a_file_that_differs_from_the_database(own, capsys):
    other = store_measurements(own.with_name("other.duckdb"), rows_of("ann", 2e-3))
    assert wrong_entries(own, Database.open) == 0
    other_file = query_file(other, Database.open)
    other_file._facts["made_of"] = query_file(own, Database.open).made_of
    file_of(own).write_bytes(b"".join(other_file.with_entries([])))
    assert answers(Stack())[0].measured[0].latency_s == 2e-3
    assert "differ from the database; deleted it" in run_here("db", "verify").stderr
    assert answers(Stack())[0].measured[0].latency_s == 1e-3


def test_query_uses_the_database_if_the_query_file_cannot_be_written(own):
    expected = answers(Stack())
    file_of(own).unlink()
    (file_of(own) / "full").mkdir(parents=True)
    assert answers(Stack()) == expected


def test_reading_another_users_database_writes_nothing_beside_it(own, tmp_path):
    (folder := tmp_path / "theirs").mkdir()
    shutil.copy(own, folder / "theirs.duckdb")
    assert len(answers(Stack([folder / "theirs.duckdb"]))[0].measured) == 5
    assert [path.name for path in folder.iterdir()] == ["theirs.duckdb"]
