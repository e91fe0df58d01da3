"""Test that many rows are added to a copy of a database, which answers unchanged until the copy is complete."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.store.intake import merge_file, rewritten
from kernrec.store.marks import is_own
from tests.helpers.command import environment
from tests.helpers.sharing import measurements, store_measurements

pytestmark = [
    pytest.mark.usefixtures("read_here"),
    pytest.mark.skipif(os.name == "nt", reason="an open file cannot be replaced"),
]
COUNT = (
    "import sys; from pathlib import Path; from kernrec.store import Database\n"
    "with Database.open(Path(sys.argv[1])) as database: print(database.counts()['measurement'])"
)


def count(path: Path) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(path)], env=environment(), capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.fixture
def own(tmp_path):
    return store_measurements(tmp_path / "own.duckdb", measurements("mine", 2))


def test_readers_see_the_old_database_until_the_rewrite_is_complete(own):
    own.chmod(0o640)
    with rewritten(own) as database:
        database.add_measurements(measurements("theirs", 3))
        assert count(own) == 2
    assert count(own) == 5
    assert is_own(own)
    assert stat.S_IMODE(own.stat().st_mode) == 0o640
    assert [file.name for file in own.parent.iterdir()] == [own.name]


def test_rewrite_blocks_other_writers(own, monkeypatch):
    monkeypatch.setattr("kernrec.store.intake.WAIT_S", 0.1)
    write = (
        "import sys; from pathlib import Path; from kernrec.store import connection, Database\n"
        "connection.WAIT_S = 0.1\n"
        "Database.open(Path(sys.argv[1]), read_only=False)"
    )
    with rewritten(own):
        command = [sys.executable, "-c", write, str(own)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True)
        assert "is in use by another process" in done.stderr
        with (
            pytest.raises(UsageError, match=r"another process adds rows to .*own\.duckdb; try again later"),
            rewritten(own),
        ):
            pass


def test_failed_rewrite_leaves_the_database_unchanged(own):
    def add() -> None:
        with rewritten(own) as database:
            database.add_measurements(measurements("theirs", 3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add()
    assert count(own) == 2
    assert [file.name for file in own.parent.iterdir()] == [own.name]


@pytest.mark.every(3)
def test_large_merge_writes_a_new_file(own, tmp_path, monkeypatch):
    monkeypatch.setattr("kernrec.store.intake._MANY_BYTES", 0)
    theirs = store_measurements(tmp_path / "theirs.duckdb", measurements("theirs", 3))
    inode = own.stat().st_ino
    assert merge_file(own, theirs) == 4  # three measurements and a config
    assert own.stat().st_ino != inode
    assert merge_file(own, theirs) == 0
    assert count(own) == 5


def test_database_is_not_locked_while_new_rows_are_checked(own, tmp_path, monkeypatch):
    """In an earlier version, every query failed for half a minute while 10^6 rows were checked."""
    seen = []

    def check(task: str, other: Path, folder: Path) -> dict[str, int]:
        seen.append(count(own))
        return {}

    monkeypatch.setattr("kernrec.store.intake.read_untrusted", check)
    merge_file(own, tmp_path / "theirs.duckdb")
    assert seen == [2]
