"""Test the help of every command, shell completion, and the report that an unexpected error leaves behind."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from kernrec.cli import app as application
from kernrec.cli.app import app, run
from kernrec.cli.misuse import removed as removed_words
from tests.helpers.command import environment, run_apart
from tests.helpers.paths import ROOT


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, sub_command in getattr(command, "commands", {}).items():
        yield from commands(sub_command, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))
MOST_COMMANDS, MOST_OPTIONS = 24, 160
"""Maximum numbers of commands and options in the whole application. The goal is 26 and 160."""
NAMES = [" ".join(path) for path in COMMANDS]


@pytest.mark.parametrize("path", COMMANDS, ids=NAMES)
def test_every_command_and_option_has_help(path):
    command = COMMANDS[path]
    assert command.help
    assert command.help.splitlines()[0].rstrip().endswith((".", ":"))
    assert "\n" not in command.help.replace("\n\n", ""), "paragraphs wrap to the terminal, not where the source does"
    missing = [
        parameter.name
        for parameter in command.params
        if parameter.param_type_name == "option" and not (parameter.help or "").strip()
    ]
    assert not missing


@pytest.mark.parametrize("path", COMMANDS, ids=NAMES)
def test_help_fits_80_columns(path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    assert run([*path, "--help"]) == 0
    output, errors = capsys.readouterr()
    assert not errors
    assert f"Usage: {' '.join(['kernrec', *path])}" in output
    assert max(map(len, output.splitlines())) <= 80
    assert "…" not in output, "something is cut off"


def test_messages_name_no_removed_option():
    existing = {name for command in COMMANDS.values() for p in command.params for name in (*p.opts, *p.secondary_opts)}
    removed = {word for words in removed_words() for word in words.split() if word.startswith("--")}
    removed -= existing | {"--csv"}  # `--csv` is also an option of Nsight Compute
    assert {"--download", "--triton"} <= removed
    named = [
        (str(file), option)
        for file in (ROOT / "kernrec").rglob("*.py")
        if file.name != "misuse.py" and any(option in file.read_text(encoding="utf-8") for option in removed)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for option in removed.intersection(re.findall(r"--[a-z-]+", node.value))
    ]
    assert named == []


def test_command_line_has_few_options(capsys, monkeypatch):
    leaves = [command for command in COMMANDS.values() if not hasattr(command, "commands")]
    options = [p for command in leaves for p in command.params if p.param_type_name == "option" and p.name != "help"]
    assert len(leaves) <= MOST_COMMANDS
    assert len(options) <= MOST_OPTIONS
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["recommend", "--help"]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 60


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_can_be_installed(shell, tmp_path):
    variables = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = run_apart("--install-completion", shell, variables=variables)
    assert done.returncode == 0, done.stderr
    script = {"bash": ".bash_completions/kernrec.sh", "zsh": ".zfunc/_kernrec"}[shell]
    assert "_KERNREC_COMPLETE" in (tmp_path / script).read_text()
    assert script.split("/")[0] in (tmp_path / f".{shell}rc").read_text()


def test_completion_completes_commands_and_options():
    def completions(words: str) -> list[str]:
        variables = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_KERNREC_COMPLETE": "complete_bash"}
        return run_apart(variables=variables).stdout.split()

    assert completions("kernrec re") == ["recommend"]
    assert completions("kernrec recommend --obj") == ["--objective"]


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Make a command raise an unexpected exception, and return its cache folder."""

    def fail(arguments: object, **options: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(application, "application", lambda names: fail)
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KERNREC_DEBUG", raising=False)
    return tmp_path / "cache"


def test_unexpected_error_prints_one_line_and_writes_a_file(failing, capsys):
    assert run(["list"]) == 70
    output, errors = capsys.readouterr()
    assert not output
    (report,) = (failing / "crashes").iterdir()
    (line,) = errors.splitlines()
    version = run_apart("--version").stdout.strip()
    assert line == (
        f"kernrec: internal error in kernrec {version}: ZeroDivisionError: division by zero; "
        f"details are in {report}, please report them"
    )
    details = report.read_text()
    assert "arguments: ['list']" in details
    assert "Traceback (most recent call last)" in details
    assert "in fail" in details


def test_error_report_without_a_cache_folder_names_kernrec_debug(failing, capsys):
    failing.write_text("a file where the folder should be")
    assert run(["list"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("ZeroDivisionError: division by zero; KERNREC_DEBUG=1 shows where")


@pytest.mark.usefixtures("failing")
def test_debug_mode_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("KERNREC_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["list"])


def test_table_prints_to_a_pipe_without_unicode():
    command = [sys.executable, "-m", "kernrec", "list", "gpus"]
    variables = environment(PYTHONIOENCODING="cp1252")
    done = subprocess.run(command, env=variables, capture_output=True, check=True)
    lines = done.stdout.decode("cp1252").splitlines()
    assert set(lines[1]) == {"-"}
    assert len(lines) > 40


CALL = """
import atexit, sys
atexit.register(print, "registered earlier")
sys.argv[1:] = ["list", "nothing"]
from kernrec.cli import command, main
"""


@pytest.mark.parametrize(("call", "status"), [
    ("main()", 2), ("command()", 2),
    ("try: main()\nexcept SystemExit: sys.exit(3)", 3),
    ("from contextlib import suppress\nwith suppress(SystemExit): main()\nsys.exit(3)", 3),
])  # fmt: skip
def test_command_ends_with_its_own_or_the_callers_status(call, status):
    done = subprocess.run([sys.executable, "-c", CALL + call], env=environment(), capture_output=True, check=False)
    assert done.returncode == status
    assert done.stdout.split() == [b"registered", b"earlier"]
