"""Test that opening a file that is no database of kernrec gives a one-line error and leaves the file unchanged."""

import os
import random
import subprocess
import sys

import duckdb
import pytest

from kernrec.errors import UsageError
from kernrec.store import Database
from kernrec.store.schema import migrations
from tests.helpers.paths import ROOT
from tests.helpers.sharing import USUAL, add


@pytest.fixture
def path(tmp_path):
    return tmp_path / "it's [a] database.duckdb"


@pytest.fixture(scope="module")
def megabytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("filled") / "a.duckdb"
    noise = random.Random(1)
    samples = [[1e-3 * noise.uniform(0.5, 1.5) for _ in range(60)] for _ in range(3000)]
    rows = [{"config": {"i": i}, "latency_samples_s": each} for i, each in enumerate(samples)]
    with Database.open(path, read_only=False, create=True) as database:
        add(database, *(USUAL | row for row in rows))
    return path.read_bytes()


@pytest.fixture
def filled(path, megabytes):
    path.write_bytes(megabytes)
    return path


def refused(path, **how) -> str:
    """Return the error line of opening `path`, whose folder must stay unchanged."""
    folder = path.parent
    before = {file: file.read_bytes() for file in folder.iterdir() if file.is_file()} if folder.is_dir() else None
    with pytest.raises(UsageError) as caught:
        Database.open(path, **how)
    after = {file: file.read_bytes() for file in folder.iterdir() if file.is_file()} if folder.is_dir() else None
    assert after == before
    line = str(caught.value)
    assert "\n" not in line
    assert str(path.name) in line or "folder" in line
    return line


BOTH = pytest.mark.parametrize("read_only", [True, False])


def test_database_is_created_with_its_folder_and_reopened(tmp_path):
    path = tmp_path / "new" / "folder" / "a.duckdb"
    for read_only in (False, True, False):
        with Database.open(path, read_only=read_only, create=not read_only) as database:
            assert set(database.counts().values()) == {0}


@BOTH
def test_missing_file_is_not_created(path, read_only):
    assert "there is no database at" in refused(path, read_only=read_only)
    assert "there is no database at" in refused(path, read_only=True, create=True)


@pytest.mark.skipif(os.name == "nt", reason="links need privileges")
def test_database_is_created_at_the_target_of_a_link(tmp_path):
    for name in ("opened", "created"):
        (link := tmp_path / name).symlink_to(target := tmp_path / "folder" / f"{name}.duckdb")
        if name == "created":
            Database.create(link)
        Database.open(link, read_only=False, create=True).close()
        assert link.is_symlink()
        assert target.is_file()


@BOTH
def test_folder_is_refused_as_a_database(path, read_only):
    path.mkdir()
    assert refused(path, read_only=read_only).endswith("is a folder, not a database")


@BOTH
@pytest.mark.parametrize("content", [b"", b"hello\n" * 5000])
@pytest.mark.usefixtures("read_here")
def test_file_of_another_type_is_refused_as_a_database(path, content, read_only):
    path.write_bytes(content)
    assert refused(path, read_only=read_only).endswith("is not a DuckDB database")
    assert refused(path, read_only=False, create=True).endswith("is not a DuckDB database")


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("remaining", "read_only"),
    [(100, True), (4096, False), (12288, True), (0.3, False), (0.7, True), (-(1 << 18), False), (-1, True)],
)
def test_truncated_file_is_reported(filled, remaining, read_only):
    data = filled.read_bytes()
    filled.write_bytes(data[: int(remaining * len(data)) if isinstance(remaining, float) else remaining])
    assert refused(filled, read_only=read_only).endswith("is damaged or cut short")


def test_shrunk_database_is_not_reported_as_truncated(filled):
    size = filled.stat().st_size
    with duckdb.connect(str(filled)) as connection:
        connection.execute("CREATE TABLE big AS SELECT random() AS a FROM range(1000000)")
        connection.execute("CHECKPOINT")
        connection.execute("DROP TABLE big")
    for _ in range(3):
        with Database.open(filled, read_only=False) as database:
            assert database.counts()["measurement"] == 3000
            database._connection.execute(
                "DELETE FROM db.config WHERE config_id IN (SELECT config_id FROM db.config LIMIT 500)"
            )
    assert filled.stat().st_size < size + (1 << 23)


@BOTH
@pytest.mark.usefixtures("read_here")
def test_foreign_database_stays_unchanged(path, read_only):
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE measurement (a INTEGER)")
    assert refused(path, read_only=read_only).endswith("is a DuckDB database, but not one of kernrec's")
    assert refused(path, read_only=False, create=True).endswith("is a DuckDB database, but not one of kernrec's")


@BOTH
@pytest.mark.usefixtures("read_here")
def test_message_names_a_newer_database_schema(filled, read_only):
    latest = len(migrations())
    with duckdb.connect(str(filled)) as connection:
        connection.execute("INSERT INTO migration VALUES (?, 'next', now()::TIMESTAMP)", [latest + 1])
    says = f"has schema {latest + 1}, made by a newer kernrec; this one knows schemas up to {latest}"
    assert says in refused(filled, read_only=read_only)


HOLD = """
import sys
from pathlib import Path
from kernrec.store import Database
with Database.open(Path(sys.argv[1]), read_only=False):
    print("held", flush=True)
    sys.stdin.read()
"""


@BOTH
@pytest.mark.usefixtures("read_here")
def test_locked_database_error_names_the_other_process(filled, read_only, monkeypatch):
    monkeypatch.setattr("kernrec.store.connection.WAIT_S", 0.2)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(filled)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        assert f"is in use by another process (PID {holder.pid})" in refused(filled, read_only=read_only)
    finally:
        holder.communicate()
    Database.open(filled).close()


def test_database_open_for_reading_refuses_writing_in_one_process(filled):
    with Database.open(filled):
        assert "already open in this program" in refused(filled, read_only=False)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser writes anywhere")
def test_database_in_a_read_only_folder_can_be_read(filled):
    filled.parent.chmod(0o500)
    try:
        with Database.open(filled) as database:
            assert database.counts()["measurement"] == 3000
        with pytest.raises(UsageError, match="permission denied"):
            Database.open(filled.parent / "new.duckdb", read_only=False, create=True)
    finally:
        filled.parent.chmod(0o700)


def test_reading_a_database_writes_no_file(filled, refuses):
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in filled.parent.iterdir()}
    with Database.open(filled) as database:
        assert len(database.rows("measurement")) == 3000
        refuses(lambda: database.add("config", [{"kernel": "k", "tunables": {}}]))
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in filled.parent.iterdir()} == before


FILL = """
import resource, signal, sys
from pathlib import Path
from kernrec.store import Database
from tests.helpers.sharing import add, USUAL
path = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100_000, resource.RLIM_INFINITY))
failed = USUAL | {"outcome": "crash", "latency_s": None}
with Database.open(path, read_only=False) as database:
    add(database, *(failed | {"config": {"i": i}, "error": f"{i} " * 300} for i in range(4000)))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no limit of a file's size")
def test_full_disk_is_reported_in_one_line_and_stores_nothing(path):
    Database.open(path, read_only=False, create=True).close()
    done = subprocess.run([sys.executable, "-c", FILL, str(path)], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("cannot be written: the disk is full; nothing was stored")
    with Database.open(path) as database:
        assert set(database.counts().values()) == {0}


def test_interactive_python_shows_no_progress_bar(tmp_path):
    """DuckDB treats a program without a file as interactive, and would show progress bars for slow queries."""
    asks = (
        "import duckdb, sys; from pathlib import Path; from kernrec.store import Database\n"
        "setting = \"SELECT value FROM duckdb_settings() WHERE name = 'enable_progress_bar'\"\n"
        "print(*duckdb.connect().execute(setting).fetchone())\n"
        "for database in (Database.memory(), Database.open(Path(sys.argv[1]), read_only=False, create=True)):\n"
        "    print(*database.query(setting)[0])\n"
    )
    command = [sys.executable, "-c", asks, str(tmp_path / "own.duckdb")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["true", "false", "false"]
