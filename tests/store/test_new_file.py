"""Test that a new database appears whole or not at all after a kill, a race or a full disk."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.store import Database, schema
from kernrec.store.schema import migrations
from tests.helpers.command import environment

POSIX = pytest.mark.skipif(os.name == "nt", reason="needs fork and limits of a file's size")

# Kill the creating process at each line of the module and print what is left; the last process survives.
KILLED_AT_EACH_LINE = """
import os, signal, sys
from pathlib import Path
from kernrec.store import schema

folder = Path(sys.argv[1])
schema.make_file(folder / "whole")  # what the others copy is made once
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
    if left == "nothing":  # what was left beside it is in nobody's way
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
        os.read(waiting, 1)  # until the parent closes its end
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


def test_system_without_links_uses_rename(path, monkeypatch):
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
    schema.make_file(path)  # and nothing of the failed attempt stays in memory
    with Database.open_checked(path) as database:
        assert set(database.counts().values()) == {0}
