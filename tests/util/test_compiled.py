"""Which form of a core runs: no compiled one of other source is loaded, and a line says so."""

import importlib.machinery
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernrec.util.compiled import CHOICE, PACKAGE, choose, file_name, rooms, sources, state
from tests.helpers.process import environment

ROOM, FOLDER = "kernrec.model.prior", PACKAGE / "model" / "prior"
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]


def copied(folder: Path) -> Path:
    """The sources of a core in a folder."""
    for path in sources(FOLDER):
        shutil.copy(path, folder / path.name)
    return folder


def test_rooms_have_the_source_that_their_core_is_made_of() -> None:
    assert FOLDER in rooms()
    for room in rooms():
        assert {"core.py", "core.pxd"} <= {path.name for path in sources(room)}


def test_a_compiled_core_of_other_source_is_not_loaded_and_a_line_says_so(tmp_path: Path) -> None:
    for room in rooms():
        folder = tmp_path / room.relative_to(PACKAGE)
        folder.mkdir(parents=True)
        for path in sources(room):
            shutil.copy(path, folder / path.name)
        (folder / f"_core.0123456789abcdef{SUFFIX}").write_bytes(b"of an earlier version")
    chosen = choose(ROOM, tmp_path / "model" / "prior", None)
    assert not chosen.compiled
    assert "of other source" in chosen.state
    code = "import pathlib, sys; from kernrec.util import compiled; compiled.PACKAGE = pathlib.Path(sys.argv[1])"
    code += "; [compiled.core(f'kernrec.model.{room}') for room in ('prior', 'learn', 'prior')]"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(KERNREC_CORE=""))
    (line,) = done.stderr.splitlines()
    assert "of other source than core.py" in line
    assert "install kernrec again" in line


def test_an_edit_of_any_source_asks_for_another_compiled_core(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    expected = {file_name(folder)}
    assert expected == {file_name(FOLDER)}
    for path in sources(folder):
        path.write_text(path.read_text() + "\n# edited\n")
        expected.add(file_name(folder))
    assert len(expected) == 1 + len(sources(folder))


def test_a_compiled_core_that_cannot_be_loaded_is_left_aside(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    (folder / file_name(folder)).write_bytes(b"no library")
    chosen = choose(ROOM, folder, None)
    assert not chosen.compiled
    assert "cannot be loaded" in str(chosen.warning)


def test_the_environment_can_ask_for_python() -> None:
    chosen = choose(ROOM, FOLDER, "python")
    assert chosen.state == "Python (KERNREC_CORE is set)"
    assert not chosen.compiled


def test_doctor_says_which_form_the_cores_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "kernrec", "doctor"]
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("KERNREC_DB", str(tmp_path / "own.duckdb"))
    for choice, expected in (({}, state()), ({CHOICE: "python"}, "Python (KERNREC_CORE is set)")):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(**choice))
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("core ")]
        assert line.split(maxsplit=1)[1] == expected
