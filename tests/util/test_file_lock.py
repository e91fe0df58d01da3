"""Test file locks with `flock`, and with byte-range locks on systems without `flock`."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kernrec.util import file_lock
from kernrec.util.file_lock import try_lock
from tests.helpers.command import environment

HOLD = """
import os, sys
from kernrec.util.file_lock import try_lock
print(try_lock(os.open(sys.argv[1], os.O_RDWR)), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "file").write_text("content")
    return tmp_path / "file"


def test_lock_excludes_other_processes_until_its_process_ends(path):
    ours = os.open(path, os.O_RDWR)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert not try_lock(ours)
        other.kill()
        other.wait()
        assert try_lock(ours)
    os.close(ours)


def test_lock_is_released_when_closed(path):
    first, second = (os.open(path, os.O_RDWR) for _ in range(2))
    assert try_lock(first)
    assert not try_lock(second)
    os.close(first)
    assert try_lock(second)
    os.close(second)


def test_system_without_flock_locks_one_byte_far_beyond_the_end(path, monkeypatch):
    locked: set[tuple[int, int]] = set()

    def locking(descriptor: int, mode: int, size: int) -> None:
        place = os.lseek(descriptor, 0, os.SEEK_CUR), size
        if place in locked:
            raise OSError
        locked.add(place)

    monkeypatch.setattr(file_lock, "fcntl", None)  # as on Windows
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    first, second = (os.open(path, os.O_RDWR) for _ in range(2))
    assert try_lock(first)
    assert not try_lock(second)
    ((position, size),) = locked
    assert size == 1
    assert position > 1 << 32
    assert os.read(first, 100) == b"content"  # the file position is unchanged
    os.close(first)
    os.close(second)
