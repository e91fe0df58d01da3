"""Test that commands refuse misuse in one line before they do any work. `refusals.txt` has the messages."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from kernrec.cli import misuse
from kernrec.cli.app import app
from tests.helpers.command import run_here
from tests.helpers.serving import MIXTRAL, written

COMMANDS = typer.main.get_command(app).commands
NAMES = [*COMMANDS, *(f"db {name}" for name in COMMANDS["db"].commands), "db export --format"]
OPTIONS = {
    name: [word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)]
    for name, command in COMMANDS.items()
}
TRANSCRIPT = Path(__file__).with_name("refusals.txt")


def make_folder(folder: Path) -> Path:
    shutil.copytree(TRANSCRIPT.with_suffix(""), folder)
    written(folder / "mixtral", MIXTRAL)
    (folder / "empty").mkdir()
    for name in ("noise.toml", "noise.zip"):
        (folder / name).write_bytes(bytes(range(256)))
    for name in ("huge.cu", "huge.ptx"):
        with (folder / name).open("wb") as file:
            file.truncate(2 << 30)  # a sparse file takes no disk space
    (folder / "huge.toml").write_text((folder / "scale.toml").read_text().replace("scale.cu", "huge.cu"))
    return folder


def refusal(command: str, folder: Path, home: Path, *databases: str) -> str:
    """Run a command that must fail with a one-line error. Return its exit status and its message without machine paths.
    The command may create `databases` in its home, because kernrec creates a database before it reads damaged code."""
    before = sorted(folder.rglob("*"))
    done = run_here(*shlex.split(command)[1:], cwd=folder, home=home)
    assert done.stdout == "", command
    assert (done.stderr.count("\n"), done.stderr[:9]) == (1, "kernrec: "), (command, done.stderr)
    assert sorted(folder.rglob("*")) == before, command
    assert {path.name for path in home.glob("*")} <= {".cache", *databases}, command
    shutil.rmtree(home / ".local", ignore_errors=True)
    message = done.stderr.rstrip().replace(str(folder), "FOLDER").replace(str(home), "HOME")
    # The config that is refused first depends on process timing.
    message = re.sub(r"block_x=[0-9]+", "block_x=N", message)
    return f"{done.returncode} {message}"


@pytest.mark.usefixtures("compiled_here")
def test_misuse_prints_the_recorded_messages(tmp_path):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    folder, edited, expected = make_folder(tmp_path / "work"), {}, TRANSCRIPT.read_text(encoding="utf-8")
    answered = []
    for line in expected.splitlines():
        kind, _, rest = line.partition(" ")
        if kind in ("edit", "write"):
            name, _, words = rest.partition(": ")
            edited[name] = (folder / name).read_text()
            *old, new = map(json.loads, words.split(" becomes "))
            assert not old or old[0] in edited[name], line
            (folder / name).write_text(edited[name].replace(old[0], new) if old else new)
        if not kind.isdigit():
            answered.append(line)
        if kind == "$":
            answered.append(refusal(line[2:], folder, tmp_path / "home", *([".local"] if edited else ())))
            while edited:
                name, text = edited.popitem()
                (folder / name).write_text(text)
    text = "\n".join(answered) + "\n"
    if os.environ.get("KERNREC_UPDATE_EXPECTED"):
        TRANSCRIPT.write_text(text, encoding="utf-8")
        expected = text
    assert text == expected


def test_removed_command_or_option_names_its_replacement():
    for name in (name for name in misuse.removed() if name not in NAMES):
        *command, last = name.split()
        if not command and last.startswith("-"):  # choose a command without the removed option
            command = [next(each for each in ("recommend", "analyze", "train") if last not in OPTIONS[each])]
        done = run_here(*command, last)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), name
        assert done.stderr.startswith("kernrec: ")
        instead = misuse.removed()[name]
        reason = instead.removeprefix("no option: ")
        assert f"was removed{'; use' if reason == instead else ':'} {reason}" in done.stderr


def test_name_from_another_tool_is_answered_with_kernrecs_name():
    for instead, names in misuse.removed("other_names.toml").items():
        needed = instead.split()[0]
        for *command, last in map(str.split, names.split(", ")):
            if not command and last.startswith("-"):
                having = [name for name, options in OPTIONS.items() if needed in options] or ["recommend"]
                command = [next(name for name in having if last not in OPTIONS[name])]
            done = run_here(*command, last)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), last
            assert done.stderr.endswith(f"; use {instead}\n"), last


@pytest.mark.parametrize(
    ("to", "status", "message"), [(">&-", 0, ""), (">/dev/full", 1, "cannot be written: No space")]
)
def test_closed_output_prints_no_traceback(to, status, message):
    if to == ">/dev/full" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    done = subprocess.run(
        f"{sys.executable} -m kernrec list ops {to}",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, message in done.stderr) == (status, True)
    assert done.stderr.count("\n") == bool(message)
