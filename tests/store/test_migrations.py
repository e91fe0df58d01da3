"""Test the schema, and the migration of older databases to the newest schema."""

import subprocess
import sys

import duckdb
import pytest

from kernrec.errors import UsageError
from kernrec.store import Database, schema
from kernrec.store.connection import connect_memory
from kernrec.store.intake import merge
from kernrec.store.schema import Migration, migrate, migrations
from tests.helpers.sharing import add


def test_migration_steps_are_numbered_without_gaps():
    assert [step.number for step in migrations()] == list(range(1, len(migrations()) + 1))


def test_failed_step_leaves_nothing_behind(monkeypatch):
    connection = connect_memory()
    bad = (Migration(1, "bad", "CREATE TABLE half (a INTEGER); SELECT * FROM nowhere;"),)
    monkeypatch.setattr("kernrec.store.schema.migrations", lambda: bad)
    with pytest.raises(duckdb.Error):
        migrate(connection, 0)
    assert schema.tables(connection) == {}


@pytest.fixture
def outdated(tmp_path, monkeypatch, row):
    """Create a database one schema behind with one measurement; also return the measurement's key."""
    path = tmp_path / "a.duckdb"
    with Database.open(path, read_only=False, create=True) as database:
        keys = add(database, row())
    more = (*migrations(), Migration(len(migrations()) + 1, "more", "ALTER TABLE measurement ADD COLUMN mood VARCHAR"))
    monkeypatch.setattr("kernrec.store.schema.migrations", lambda: more)
    return path, keys


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.usefixtures("read_here")
def test_older_schema_is_migrated_when_opened(outdated, read_only, row):
    path, keys = outdated
    with Database.open(path, read_only=read_only) as database:
        assert "mood" in database.rows("measurement")[0]
    with Database.open(path, read_only=False) as database:
        assert add(database, row()) == keys  # a new column that is NULL changes no key
        assert database.counts()["measurement"] == 1
        assert database.altered() == []


@pytest.mark.usefixtures("read_here")
def test_merge_reads_an_older_schema_without_changing_it(tmp_path, monkeypatch, row):
    path, older = tmp_path / "older.duckdb", migrations()[:4]
    with monkeypatch.context() as patch:
        patch.setattr("kernrec.store.schema.migrations", lambda: older)
        with Database.open(path, read_only=False, create=True) as database:
            keys = add(database, row())
            assert database.schema == 4
    before = path.read_bytes()
    with Database.open(tmp_path / "new.duckdb", read_only=False, create=True) as database:
        assert merge(database, path) > 0
        assert [row["measurement_id"] for row in database.rows("measurement")] == keys
        assert database.altered() == []
    assert path.read_bytes() == before


def test_failed_migration_states_the_reason(outdated, monkeypatch):
    monkeypatch.setattr("kernrec.store.connection.WAIT_S", 0.2)
    path, _ = outdated
    latest = len(migrations())
    reader = (
        "import duckdb, sys; held = duckdb.connect(sys.argv[1], read_only=True); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", reader, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(UsageError) as refused:
            Database.open(path)
        other.stdin.close()
    assert "in use by another process" in str(refused.value)
    assert str(refused.value).endswith(f"(it has schema {latest} and this kernrec needs {latest + 1})")
