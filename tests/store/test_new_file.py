"""Test new database files and migrations."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from kernrec.errors import UsageError
from kernrec.store import Database, schema
from kernrec.store.connection import connect_memory
from kernrec.store.schema import Migration, migrate, migrations
from tests.helpers.command import environment
from tests.helpers.sharing import add, merge

POSIX = pytest.mark.skipif(os.name == "nt", reason="needs fork and limits of a file's size")

# Kill the creating process at each line of the module and print what is left. The last process survives.
KILLED_AT_EACH_LINE = """
import os, signal, sys
from pathlib import Path
from kernrec.store import schema

folder = Path(sys.argv[1])
schema.make_file(folder / "whole")  # caches the content of a new database
whole = (folder / "whole").read_bytes()
(folder / "whole").unlink()

def killed_at(number, path):
    left = number
    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename != schema.__file__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    schema.make_file(path)
    os._exit(0)

for number in range(1, 1000):
    path = folder / str(number)
    if not (child := os.fork()):
        killed_at(number, path)
    status = os.waitpid(child, 0)[1]
    left = "nothing" if not path.exists() else "whole" if path.read_bytes() == whole else "half"
    if left == "nothing":  # leftover temporary files must not prevent a new file
        schema.make_file(path)
        assert path.read_bytes() == whole
    print(os.waitstatus_to_exitcode(status), left)
    if status == 0:
        break
"""

# Eight processes create the same file at the same time, and each then checks whether the file is complete.
TOGETHER = """
import os, sys
from pathlib import Path
from kernrec.store import schema

path, seed = Path(sys.argv[1]), Path(sys.argv[1] + ".seed")
schema.make_file(seed)
whole = seed.read_bytes()
seed.unlink()
waiting, start = os.pipe()
children = []
for _ in range(8):
    if not (child := os.fork()):
        os.close(start)
        os.read(waiting, 1)  # until the parent closes the pipe
        schema.make_file(path)
        os._exit(path.read_bytes() != whole)
    children.append(child)
os.close(start)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def run(script: str, argument: Path) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", script, str(argument)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new.duckdb"


@POSIX
def test_killed_creator_leaves_no_database_or_a_complete_one(tmp_path):
    *killed, alive = run(KILLED_AT_EACH_LINE, tmp_path)
    assert alive == "0 whole"
    assert set(killed) == {f"{-signal.SIGKILL} nothing", f"{-signal.SIGKILL} whole"}


@POSIX
def test_concurrent_creators_make_one_database_and_leave_no_files(path):
    run(TOGETHER, path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_new_database_uses_rename_if_hard_links_are_unavailable(path, monkeypatch):
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    schema.make_file(path)
    before = path.read_bytes()
    schema.make_file(path)
    assert path.read_bytes() == before
    with Database.open_checked(path) as database:
        assert database.schema == len(migrations())
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of this process's files, as a full disk does."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@POSIX
@pytest.mark.parametrize("temporary", [False, True])
def test_full_disk_is_reported_in_one_line_and_leaves_nothing(path, temporary, monkeypatch, tmp_path_factory):
    """Either the disk of temporary files, where the database is first created, or the database's disk is full."""
    if temporary:
        monkeypatch.setenv("KERNREC_CACHE", str(tmp_path_factory.mktemp("cache")))
        schema._empty.cache_clear()
    else:
        schema.make_file(path)
        path.unlink()
    with largest_file(100_000), pytest.raises(UsageError) as caught:
        Database.open(path, read_only=False, create=True)
    assert str(caught.value) == f"{path} cannot be written: the disk is full; nothing was stored"
    assert list(path.parent.iterdir()) == []
    schema.make_file(path)  # a second attempt works, so nothing of the first stays in memory
    with Database.open_checked(path) as database:
        assert set(database.counts().values()) == {0}


def test_migration_steps_are_numbered_without_gaps():
    assert [step.number for step in migrations()] == list(range(1, len(migrations()) + 1))


def test_failed_migration_leaves_no_tables(monkeypatch):
    connection = connect_memory()
    bad = (Migration(1, "bad", "CREATE TABLE half (a INTEGER); SELECT * FROM nowhere;"),)
    monkeypatch.setattr("kernrec.store.schema.migrations", lambda: bad)
    with pytest.raises(duckdb.Error):
        migrate(connection, 0)
    assert schema.tables(connection) == {}


@pytest.fixture
def outdated(tmp_path, monkeypatch, row):
    """Create a database one schema behind with one measurement. Also return the measurement's key."""
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
