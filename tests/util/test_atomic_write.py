"""Test that files appear whole or not at all."""

import os

import pytest

from kernrec.emit.files import write_files
from kernrec.util.atomic_write import write_whole

pytestmark = pytest.mark.skipif(os.name == "nt", reason="modes of files are POSIX's")


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
