"""The schema and how a database comes to have it."""

import duckdb
import pytest

from kernrec.errors import UsageError
from kernrec.store import Database
from kernrec.store.migrations import Migration, migrate, migrations, schema_version


def test_the_steps_are_numbered_from_one_without_a_gap():
    assert [step.number for step in migrations()] == list(range(1, len(migrations()) + 1))


def test_every_step_is_recorded():
    connection = duckdb.connect()
    assert schema_version(connection, "x") == 0
    migrate(connection, 0)
    assert schema_version(connection, "x") == len(migrations())
    found = connection.execute("SELECT id, name FROM migration ORDER BY id").fetchall()
    assert found == [(step.number, step.name) for step in migrations()]


def test_a_step_that_fails_leaves_nothing_behind(monkeypatch):
    connection = duckdb.connect()
    bad = (Migration(1, "bad", "CREATE TABLE half (a INTEGER); SELECT * FROM nowhere;"),)
    monkeypatch.setattr("kernrec.store.migrations.migrations", lambda: bad)
    with pytest.raises(duckdb.Error):
        migrate(connection, 0)
    assert connection.execute("SELECT count(*) FROM duckdb_tables()").fetchone() == (0,)


def test_an_older_schema_is_brought_up_to_date_when_opened_for_writing(tmp_path, monkeypatch, row):
    path = tmp_path / "a.duckdb"
    with Database.open(path, read_only=False, create=True) as database:
        keys = database.add_measurements([row()])
    more = (*migrations(), Migration(len(migrations()) + 1, "more", "ALTER TABLE measurement ADD COLUMN mood VARCHAR"))
    for module in ("migrations", "database"):
        monkeypatch.setattr(f"kernrec.store.{module}.migrations", lambda: more)
    with pytest.raises(UsageError, match=rf"has schema {len(more) - 1}, this kernrec needs {len(more)}"):
        Database.open(path)
    with Database.open(path, read_only=False) as database:
        assert database.add_measurements([row()]) == keys  # a new column that is NULL changes no key
        assert database.counts()["measurement"] == 1
        assert database.altered() == []
    Database.open(path).close()
