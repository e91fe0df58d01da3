"""Test the marks that record the owner of a database file, and claims that a foreign file may not make."""

import os
import shutil
from pathlib import Path

import duckdb
import pytest

from kernrec.errors import UsageError
from kernrec.store import Database, ProfileRow
from kernrec.store import reader as store_reader
from kernrec.store.marks import is_own, read_mark
from kernrec.store.measurement_log import evidence
from tests.helpers.sharing import GPU, KERNEL, PROBLEM, key_of, measurement, measurements, merge, store_measurements

pytestmark = pytest.mark.usefixtures("read_here")


def made(path: Path, latency_s: float) -> Path:
    return store_measurements(path, measurements("monday", 1, latency_s=latency_s))


def foreign(path: Path, statements: str = "") -> Path:
    """Return a copy of a database that SQL changed and this kernrec did not write."""
    copy = path.with_name(f"their {path.name}")
    shutil.copyfile(path, copy)
    if statements:
        with duckdb.connect(str(copy)) as connection:
            connection.execute(statements)
    return copy


def answers(path: Path) -> list[tuple[float, bool]]:
    with Database.open(path) as database:
        there = evidence([database.log(GPU, [PROBLEM.key])], [KERNEL], PROBLEM.key)
    return [(answer.latency_s, answer.merged) for answer in there.measured]


def test_file_written_by_kernrec_is_trusted(tmp_path):
    Database.create(path := tmp_path / "own.duckdb")
    assert is_own(path)
    assert not is_own(foreign(made(path, 1e-3)))
    os.replace(foreign(path), path)
    assert not is_own(path)


def test_new_file_is_trusted_only_if_kernrec_placed_it_and_nobody_changed_it(tmp_path, monkeypatch):
    Database.create(path := tmp_path / "own.duckdb")
    path.write_bytes(path.read_bytes() + b"changed")
    assert not is_own(path)
    link, theirs = os.link, foreign(made(tmp_path / "a.duckdb", 1e-3))
    monkeypatch.setattr(os, "link", lambda new, place: link(shutil.copy(theirs, place) and new, place))
    Database.create(path := tmp_path / "late.duckdb")
    assert path.read_bytes() == theirs.read_bytes()
    assert not is_own(path)


def test_file_of_a_killed_writer_is_trusted(tmp_path):
    path = made(tmp_path / "own.duckdb", 1e-3)
    database = Database.open(path, read_only=False)
    database.add_measurements([measurement(position=5, latency_s=2e-3)])
    database._connection.close()  # the killed process writes no mark
    assert read_mark(path).writing
    assert is_own(path)
    assert {merged for _, merged in answers(path)} == {False}


def test_foreign_file_cannot_mark_its_rows_as_the_users(tmp_path):
    path = made(tmp_path / "a.duckdb", 1e-3)
    with Database.open(path, read_only=False) as database:
        database.add_measurements([measurement(session="second", position=0, config={"block_m": 1}, latency_s=3e-3)])
    silenced = f"""
        INSERT INTO merged SELECT measurement_id, gpu, problem_id, '{key_of("ann")}', NULL FROM measurement
        WHERE session = 'second'
    """
    assert answers(foreign(path, silenced)) == [(2e-3, True)]


def test_foreign_profile_never_replaces_an_own_profile(tmp_path, profile):
    rows = {who: profile(compiler=f"nvrtc {version}", registers=registers) for who, version, registers in (  # type: ignore[operator]
        ("mine", "12.0", 32), ("theirs", "99.0", 255))}  # fmt: skip
    theirs, own = tmp_path / "theirs.duckdb", tmp_path / "own.duckdb"
    with Database.open(theirs, read_only=False, create=True) as database:
        database.add_profiles([rows["theirs"]])
    row: ProfileRow = rows["mine"]
    named = row.kernel, row.kernel_hash, row.sm
    with Database.open(own, read_only=False, create=True) as database:
        merge(database, theirs)
        assert database.profiles(*named)[0].registers.tolist() == [255]
        assert database.profiles(*named, own=True) == {}
        database.add_profiles([row])
        assert database.profiles(*named)[0].registers.tolist() == [32]
        database.add_profiles([rows["theirs"]])  # a profile that the user computed too counts as own
        assert database.profiles(*named, own=True)[0].registers.tolist() == [255]


@pytest.mark.parametrize("read_only", [True, False])
def test_file_replaced_after_its_check_is_not_opened(tmp_path, read_only, monkeypatch):
    """An earlier version answered once from a file that had replaced the checked file."""
    checked = []
    good = foreign(made(tmp_path / "a.duckdb", 1e-3))
    false = foreign(made(tmp_path / "b.duckdb", 2e-3), "UPDATE measurement SET latency_s = 1e-9")

    def check(task: str, path: Path, *, rows: bool, state: str) -> None:
        actual(task, path, rows=rows, state=state)
        checked.append(state)
        if len(checked) == 1:
            os.replace(false, path)

    actual = store_reader.read_untrusted
    monkeypatch.setattr("kernrec.store.database.read_untrusted", check)
    with pytest.raises(UsageError, match="do not match their key"):
        Database.open(good, read_only=read_only)
    assert len(checked) == 1


def test_file_replaced_during_a_write_is_not_trusted(tmp_path, refuses):
    """An earlier `db merge X --db P` marked the final file at P as checked, even if another program wrote this file."""
    path = made(tmp_path / "own.duckdb", 1e-3)
    false = foreign(made(tmp_path / "b.duckdb", 2e-3), "UPDATE measurement SET latency_s = 1e-9")
    with Database.open(path, read_only=False) as database:
        os.replace(false, path)
        database.add_measurements([measurement(position=5)])
    assert not is_own(path)
    refuses(lambda: Database.open(path))
