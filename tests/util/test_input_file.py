"""Test opening untrusted files: only regular files up to a size limit, and without blocking."""

import os
from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.util.input_file import check_input, open_input, read_input

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
