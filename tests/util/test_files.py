"""Test opening untrusted files: only regular files up to a size limit, and without blocking."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernrec.emit.formats import write_files
from kernrec.errors import UsageError
from kernrec.util.files import (
    check_input,
    new_scratch_path,
    open_input,
    read_input,
    remove_abandoned,
    scratch_folder,
    try_lock,
    write_whole,
)
from tests.helpers.command import environment

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes or devices in folders")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def test_regular_file_is_read_through_a_link(tmp_path, refuses):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_input(tmp_path / "link", 7) == b"content"
    refuses(lambda: read_input(tmp_path / "link", 6))


@pytest.mark.parametrize(("make", "says"), [(pipe, "is a named pipe"), (endless, "is a device")])
def test_pipe_and_device_are_refused_at_once(make, says, tmp_path):
    make(path := tmp_path / "input")
    for read in (open_input, check_input):
        with pytest.raises(UsageError, match=f"input {says}; expected a regular file"):
            read(path)


def test_circular_link_and_folder_raise_system_errors(tmp_path, refuses):
    (path := tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        open_input(path)
    refuses(lambda: check_input(path))
    with pytest.raises(IsADirectoryError):
        open_input(tmp_path)
    check_input(tmp_path / "nothing")


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_shared_files_follow_the_umask(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_whole(tmp_path / "report.html", b"<p>", shared=True)
        write_whole(tmp_path / "cache", b"x")
        write_files(tmp_path / "emitted", {"a/b.cu": b"x"})
    finally:
        os.umask(before)
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == mode
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "emitted").stat().st_mode & 0o777 == 0o777 & ~mask
    assert (tmp_path / "emitted" / "a" / "b.cu").stat().st_mode & 0o777 == mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "emitted", "report.html"]


def test_failed_write_leaves_no_file(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "folder", b"x", shared=True)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


HOLD = """
import os, sys
from kernrec.util.files import try_lock
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


def test_file_lock_without_flock_excludes_other_processes(path, monkeypatch):
    locked: set[tuple[int, int]] = set()

    def locking(descriptor: int, mode: int, size: int) -> None:
        place = os.lseek(descriptor, 0, os.SEEK_CUR), size
        if place in locked:
            raise OSError
        locked.add(place)

    monkeypatch.setattr("kernrec.util.files.fcntl", None)  # as on Windows
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


KILLED = """
import os, signal
from kernrec.util.files import new_scratch_path, scratch_folder
spilled = new_scratch_path()
spilled.mkdir()
(spilled / "b").write_text("more")
with scratch_folder(beside=spilled) as folder:
    (folder / "a").write_text("secret")
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_scratch_folders_of_killed_programs_are_removed(temporary):
    (temporary / "kernrec-of another kind").mkdir()
    (temporary / "another program's").mkdir()
    others = set(temporary.iterdir())
    command = [sys.executable, "-c", KILLED]
    assert subprocess.run(command, env=environment(TMPDIR=str(temporary), TEMP=str(temporary))).returncode != 0
    assert len(set(temporary.iterdir()) - others) == 2
    with scratch_folder() as in_use:
        (in_use / "a").write_text("mine")
        remove_abandoned()
        assert set(temporary.iterdir()) == others | {in_use}
        assert (in_use / "a").read_text() == "mine"


@pytest.mark.parametrize("name", ["..", "../kept", "kept", "/kept", "kernrec-link", "kernrec-missing", "\0"])
def test_folder_named_by_an_abandoned_scratch_folder_is_kept(temporary, name):
    stored = temporary / "kept"
    stored.mkdir()
    (stored / "a").write_text("mine")
    (temporary / "kernrec-link").symlink_to(stored)
    left = new_scratch_path()
    left.mkdir()
    (left / ".in-use").write_text(name.replace("/kept", str(stored)) if name.startswith("/") else name)
    remove_abandoned()
    assert sorted(file.name for file in temporary.iterdir()) == ["kept", "kernrec-link"]
    assert (stored / "a").read_text() == "mine"
