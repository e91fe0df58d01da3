"""Test that MCP tools can read files in one folder only."""

import pytest

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.gpu.card_file import card_text
from kernrec.mcp.folder import Folder


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (inside / "sub" / "kernel.cu").write_text("code")
    (tmp_path / "secret").write_text("secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "up").symlink_to(tmp_path)
    return Folder(inside)


def test_file_inside_the_folder_is_read(folder):
    assert folder.text("sub/kernel.cu") == "code"
    assert folder.text("sub/../sub/kernel.cu") == "code"


def test_file_outside_the_folder_is_refused(folder, refuses):
    refuses(lambda name: folder.text(name), [
        "../secret", "/etc/passwd", "link", "up/secret", "sub/../../secret", "", ".", "nothing", "a\0b", "~/x",
    ])  # fmt: skip


def test_server_without_a_folder_reads_no_file(refuses):
    refuses(lambda: Folder(None).text("kernel.cu"))


def test_gpu_file_is_accepted_only_inside_the_folder(folder, tmp_path):
    card = card_text(find_gpu("l4"), "mine")
    (tmp_path / "inside" / "mine.toml").write_text(card)
    (tmp_path / "outside.toml").write_text(card)
    names = folder.cards("h200, mine.toml").split(",")
    assert names[0] == "h200"
    assert find_gpu(names[1]).sms == find_gpu("l4").sms
    with pytest.raises(UsageError, match="outside the folder"):
        folder.cards("../outside.toml")
    (tmp_path / "inside" / "mine.toml").write_text(card.replace("sms = 58", "sms = 0"))
    with pytest.raises(UsageError, match="sms") as refused:
        folder.cards("mine.toml")
    assert str(tmp_path) not in str(refused.value)
