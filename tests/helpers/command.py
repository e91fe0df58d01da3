"""Run `kernrec` in this process or in another process, with the search path of the tests."""

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from kernrec.cli.app import run


class _Screen(io.BytesIO):
    """Captures output, and claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def run_here(
    *arguments: object,
    cwd: Path | None = None,
    home: Path | None = None,
    variables: Mapping[str, str] | None = None,
    in_terminal: bool = False,
) -> "CompletedProcess[str]":
    """Run a `kernrec` command line, and return its exit status and output. With `home`, variables that name kernrec's
    folders are unset. `variables` are all environment variables (default: of this process)."""
    words = [str(argument) for argument in arguments]
    in_environment = _at_home(dict(os.environ if variables is None else variables), home)
    out = io.TextIOWrapper(_Screen() if in_terminal else io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        patch.dict(os.environ, in_environment, clear=True),
        patch.object(sys, "stdout", out),
        patch.object(sys, "stderr", err),
        chdir(cwd or Path.cwd()),
    ):
        status = run(words)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return CompletedProcess(words, status, *texts)


def _at_home(variables: dict[str, str], home: Path | None) -> dict[str, str]:
    if home is None:
        return variables
    own = {k: v for k, v in variables.items() if k == "KERNREC_COUNTS" or not k.startswith(("KERNREC_", "XDG_"))}
    return own | {"HOME": str(home)}


def environment(**changed: str) -> dict[str, str]:
    """Return this process's environment variables with its module search path."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | changed


def run_apart(
    *arguments: object, cwd: Path | None = None, home: Path | None = None, variables: Mapping[str, str] | None = None
) -> "CompletedProcess[str]":
    """Run a `kernrec` command line in another process with the variables of `environment()` and `variables`. A `home`
    hides this process's variables for folders of kernrec."""
    command = [sys.executable, "-P", "-m", "kernrec", *map(str, arguments)]
    env = _at_home(environment(), home) | dict(variables or {})
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def is_alive(pid: int) -> bool:
    """Return whether a process lives or, if `pid` is negative, a process of the group `-pid`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
