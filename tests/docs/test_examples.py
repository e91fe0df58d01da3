"""Test that every example in README and docs prints the output shown.

The blocks of a page run in order, in a new folder with links to the checkout's `datasets` and `docs`, with an empty
database and a terminal of 80 columns:

- `sh`: each line is a command that must succeed. `console`: each command follows `$ `, and its output follows. The line
  `...` in an output matches any number of lines. Commands under the comment `not run: REASON` are only parsed.
- `python`: a program. Its output is in the next `text` block under the comment `output`.
- A block under the comment `file: NAME` is written to this file. Under `same as PATH`, it must equal the file PATH.
- Under the comment `with measured.duckdb`, the folder contains a database of simulated measurements.

`KERNREC_UPDATE_DOCS=1 pytest tests/docs/test_examples.py` updates the outputs in the pages.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from kernrec.cli.app import app
from tests.helpers.command import run_here
from tests.helpers.markdown import Block, blocks, name_of, pages
from tests.helpers.paths import ROOT
from tests.helpers.processors_here import processors_here
from tests.helpers.reading import reading_here
from tests.helpers.recording import make_measured_database
from tests.helpers.rig import measuring_here

LANGUAGES = {"sh", "console", "python", "cpp", "toml", "json", "text"}
ELISION = "..."
UPDATE = bool(os.environ.get("KERNREC_UPDATE_DOCS"))

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the examples are for a POSIX shell"),
    pytest.mark.slow,
]


def _with_examples() -> list[Path]:
    return [page for page in pages() if blocks(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", _with_examples(), ids=name_of)
def test_every_example_runs(page, tmp_path):
    folder, home = tmp_path / "work", tmp_path / "home"
    folder.mkdir()
    for name in ("datasets", "docs"):
        (folder / name).symlink_to(ROOT / name)
    printed = ""
    for block in blocks(page):
        if block.comment == "with measured.duckdb" and not (folder / "measured.duckdb").exists():
            make_measured_database(folder / "measured.duckdb")
        reason = block.comment.removeprefix("not run: ") if block.comment.startswith("not run: ") else None
        if block.comment.startswith("file: "):
            (folder / block.comment.removeprefix("file: ")).write_text(block.code, encoding="utf-8")
        elif block.comment.startswith("same as "):
            assert block.code == (ROOT / block.comment.removeprefix("same as ")).read_text(encoding="utf-8"), str(block)
        elif block.language in ("sh", "console") and (reason is not None or _lacks_extra(block)):
            for command, _ in _commands(block):
                _check_options(block, command)
        elif block.language in ("sh", "console"):
            for command, expected in _commands(block):
                output = _run_in_terminal(block, command, folder, home)
                if block.language == "console":
                    _compare(block, f"$ {command}\n", expected, output)
        elif block.language == "python" and reason is None:
            printed = _run_python(block, folder, home)
        elif block.comment == "output":
            _compare(block, "```text\n", block.code, printed)


@pytest.mark.parametrize("page", _with_examples(), ids=name_of)
def test_every_code_block_states_its_language(page):
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block}: a block needs one of the languages {sorted(LANGUAGES)}"
        if block.comment.startswith("not run"):
            assert re.fullmatch(r"not run: .{10,}", block.comment), f"{block}: say why it is not run"


def _lacks_extra(block: Block) -> bool:
    needs = {".cu": "cupy", "kernrec train": "xgboost", "kernrec evaluate": "xgboost", "kernrec explore": "bokeh"}
    return any(text in block.code and importlib.util.find_spec(name) is None for text, name in needs.items())


def _commands(block: Block) -> list[tuple[str, str]]:
    """Return (command, expected output) pairs. A command that ends in a backslash continues on the next line."""
    result: list[tuple[str, str]] = []
    goes_on = False
    for line in block.code.splitlines(keepends=True):
        if goes_on or block.language == "sh" or line.startswith("$ "):
            text = line if goes_on or block.language == "sh" else line[2:]
            if goes_on:
                result[-1] = (result[-1][0] + "\n" + text.removesuffix("\n"), "")
            elif text.strip() and not text.startswith("#"):
                result.append((text.removesuffix("\n"), ""))
            goes_on = text.endswith("\\\n")
        else:
            assert result, f"{block}: a console block begins with a command behind '$ '"
            result[-1] = (result[-1][0], result[-1][1] + line)
    assert result, f"{block}: no command"
    return result


def _environment(home: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KERNREC_", "PYTHON"))}
    environment["KERNREC_COUNTS"] = "ptx"
    scripts = str(Path(sys.executable).parent)
    return environment | {
        "PATH": os.pathsep.join([scripts, environment.get("PATH", os.defpath)]), "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(home / "config"), "XDG_DATA_HOME": str(home), "COLUMNS": "80", "LINES": "24",
        "NO_COLOR": "1", "TERM": "dumb",
    }  # fmt: skip


def _run_in_terminal(block: Block, command: str, folder: Path, home: Path) -> str:
    """Run a command, and return its standard output followed by its standard error. README commands and commands that
    need a shell run in a separate process. Other commands run in this process, and only a final pipe or redirection
    runs in a shell."""
    arguments, behind = (None, "") if block.page.name == "README.md" else _arguments(command)
    if arguments is None:
        status, shown, errors = _in_a_shell(command, folder, home)
    else:
        with reading_here(), measuring_here(), processors_here():
            done = run_here(*arguments, cwd=folder, variables=_environment(home), in_terminal=not behind)
        status, shown, errors = done.returncode, done.stdout, done.stderr
        if behind:
            shell = ["bash", "-c", f"cat {behind}"]
            piped = subprocess.run(shell, cwd=folder, input=shown, capture_output=True, text=True, check=False)
            status, shown, errors = status or piped.returncode, piped.stdout, errors + piped.stderr
    output = shown + re.sub(r"^.* (?:so far|left)\n", "", errors, flags=re.MULTILINE)  # progress lines
    assert status == 0, f"{block}: {command}: exit status {status}\n{output}"
    return output


def _arguments(command: str) -> tuple[list[str] | None, str]:
    """Return a command's arguments (None if it needs a shell), and its final pipe or redirection."""
    parts = re.fullmatch(r"([^|>]*?)( [|>] .*)?", command.replace("\\\n", " "))
    if parts is None:
        return None, ""
    lexer = shlex.shlex(parts[1], posix=True, punctuation_chars="|&;<>$*")
    lexer.whitespace_split = True
    words = list(lexer)
    needs_shell = words[0] != "kernrec" or any(set(word) <= set(lexer.punctuation_chars) for word in words)
    return (None, "") if needs_shell else (words[1:], parts[2] or "")


def _in_a_shell(command: str, folder: Path, home: Path) -> tuple[int, str, str]:
    import pty

    ours, theirs = pty.openpty()
    with (folder.parent / "stderr").open("w+b") as errors:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=_environment(home),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=errors,
        )
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux raises OSError once the terminal's other end is closed
                piece = b""
            if not piece:
                break
            shown += piece
        os.close(ours)
        status = process.wait()
        errors.seek(0)
        return status, shown.decode().replace("\r\n", "\n"), errors.read().decode()


def _run_python(block: Block, folder: Path, home: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", block.code],
        cwd=folder,
        env=_environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{block}: {done.stderr}"
    return done.stdout


def _compare(block: Block, above: str, expected: str, output: str) -> None:
    """Compare an output with the text that the page shows below the line `above`."""
    output = re.sub(r"[ \t]+$", "", output, flags=re.MULTILINE)
    parts = re.split(rf"^{re.escape(ELISION)}\n", expected, flags=re.MULTILINE)
    pattern = r"(?:.*\n)*?".join(re.escape(part) for part in parts)
    if re.fullmatch(pattern, output):
        return
    if UPDATE:
        text = block.page.read_text(encoding="utf-8")
        assert above + expected in text, f"{block}: write the output below {above!r} by hand"
        text = text.replace(above + expected, above + _elided(parts, output), 1)
        block.page.write_text(text, encoding="utf-8")
        return
    pytest.fail(f"{block}: the page shows\n{above}{expected}\nand this is printed now:\n{output}")


def _elided(parts: list[str], output: str) -> str:
    """Shorten the output with `...` to as many first and last lines as the page shows."""
    if len(parts) == 1:
        return output
    lines = output.splitlines(keepends=True)
    first, last = parts[0].count("\n"), parts[-1].count("\n")
    return "".join([*lines[:first], ELISION + "\n", *lines[len(lines) - last :]])


def _check_options(block: Block, command: str) -> None:
    """Parse a command without running it. Fail for an unknown option or a missing argument."""
    words = shlex.split(re.split(r" [|>&;] ?", command.replace("\\\n", " ").split(" #")[0])[0])
    while words and re.fullmatch(r"\w+=.*", words[0]):  # skip environment variables before the command
        words.pop(0)
    program = words.pop(0)
    if Path(program).name == "kernrec":
        parser = typer.main.get_command(app)
        while hasattr(parser, "commands") and words and not words[0].startswith("-"):
            assert words[0] in parser.commands, f"{block}: kernrec has no command {words[0]}"
            parser = parser.commands[words.pop(0)]
        parser.make_context(program, words)
    elif program in ("python", "python3", "bash") and words and not words[0].startswith("-"):
        script = ROOT / words[0]
        text = script.read_text(encoding="utf-8")
        for word in words[1:]:
            if word.startswith("--"):
                assert f'"{word.partition("=")[0]}"' in text, f"{block}: {words[0]} has no option {word}"
    for extra in re.findall(r"\[([\w,]+)\]'", command):
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for name in extra.split(","):
            assert f"\n{name} = [" in project, f"{block}: there is no extra {name}"


def test_commands_in_the_readme_table_exist():
    table = Block(ROOT / "README.md", 0, "sh", "", "")
    commands = re.findall(r"`(kernrec [^`]+)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(commands) >= 8
    for command in commands:
        _check_options(table, command)
