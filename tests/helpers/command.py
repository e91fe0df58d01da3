"""The `kernrec` command in this process: what it prints, and its exit status.

A process of its own takes a third of a second to start. Tests of what only a process has (its environment at the start,
signals, closed streams) start one.
"""

import io
import os
import sys
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from kernrec.cli.app import run


class _Screen(io.BytesIO):
    """What a terminal shows."""

    def isatty(self) -> bool:
        return True


def run_here(
    *arguments: object,
    cwd: Path | None = None,
    home: Path | None = None,
    variables: Mapping[str, str] | None = None,
    in_terminal: bool = False,
) -> "CompletedProcess[str]":
    """Runs a command line.

    Args:
        arguments: of the command.
        cwd: the folder that it runs in.
        home: the user's home; then no variable names a folder of kernrec's, either.
        variables: all environment variables; default: those of this process.
        in_terminal: whether standard output is a terminal.
    """
    words = [str(argument) for argument in arguments]
    environment = dict(os.environ if variables is None else variables)
    if home is not None:
        environment = {
            k: v for k, v in environment.items() if k == "KERNREC_COUNTS" or not k.startswith(("KERNREC_", "XDG_"))
        }
        environment["HOME"] = str(home)
    out = io.TextIOWrapper(_Screen() if in_terminal else io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        patch.dict(os.environ, environment, clear=True),
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
