"""Test that scratch folders are private, and deleted even after their programs were killed."""

import subprocess
import sys
import tempfile

import pytest

from kernrec.util.scratch import new_scratch_path, remove_abandoned, scratch_folder
from tests.helpers.command import environment

KILLED = """
import os, signal
from kernrec.util.scratch import new_scratch_path, scratch_folder
spilled = new_scratch_path()
spilled.mkdir()
(spilled / "b").write_text("more")
with scratch_folder(beside=spilled) as folder:
    (folder / "a").write_text("secret")
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return the folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folders_of_killed_programs_are_removed(temporary):
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
def test_foreign_folder_of_that_name_is_kept(temporary, name):
    """Another process may write a foreign folder's name into a scratch folder's files."""
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
