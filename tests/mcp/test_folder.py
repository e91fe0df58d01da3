"""Tools read the files of one folder and no other."""

from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.mcp.folder import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (inside / "sub" / "kernel.cu").write_text("code")
    (tmp_path / "secret").write_text("secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "up").symlink_to(tmp_path)
    return Folder(inside)


def test_a_file_inside_is_read(folder: Folder) -> None:
    assert folder.text("sub/kernel.cu") == "code"
    assert folder.text("sub/../sub/kernel.cu") == "code"


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "link", "up/secret", "sub/../../secret", "", ".", "nothing", "a\0b", "~/x"]
)
def test_nothing_else_is(folder: Folder, name: str) -> None:
    with pytest.raises(UsageError) as refused:
        folder.text(name)
    assert "secret" not in str(refused.value).replace("'../secret'", "").replace("secret'", "")


def test_without_a_folder_no_file_is_read() -> None:
    with pytest.raises(UsageError, match="without --folder"):
        Folder(None).text("kernel.cu")


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        Folder(tmp_path / "nothing")
