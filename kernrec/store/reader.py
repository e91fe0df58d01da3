"""The process that reads a stranger's file: started, waited for, and how it ended said in one line.

    parent: a request -> child with limits (`kernrec.store.intake.read_file`): open, check -> parent: what it prints

A file that makes DuckDB crash, hang or take all memory costs the child, and its user one line.
"""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError
from kernrec.store.reader_limits import Limits
from kernrec.util.process import kill_group, module_environment, own_group

READER = "kernrec.store.intake.read_file"
"""The module that reads databases and segments."""


def read_apart(
    task: str, request: Mapping[str, Any], title: str, size: int, folder: Path, reader: str = READER
) -> dict[str, Any]:
    """Have a child do what a request asks for.

    Args:
        task: one of the reader's.
        request: what the task takes.
        title: what messages call the file.
        size: its bytes, in proportion to which the child is limited.
        folder: private to this program; only the child writes to it.
        reader: the module that is run as the child.

    Returns:
        What the child found.

    Raises:
        UsageError: if the file is refused, or its reader ends without an answer.
    """
    limits = Limits.of(size)
    asked_for = {"task": task, "title": title, "folder": str(folder), "limits": limits.as_dict(), **request}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as question:
        question.write(json.dumps(asked_for).encode())
        question.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", reader],
            stdin=question,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env=module_environment(),
            **own_group(),
        )
        try:
            process.wait(limits.wall_s)
        except subprocess.TimeoutExpired:
            raise UsageError(f"{title} takes longer than a file of its size may ({limits.wall_s:.0f} s)") from None
        finally:
            kill_group(process)
            process.wait()
        output.seek(0)
        return _answer(title, process.returncode, output.read(2**20), limits)


def _answer(title: str, status: int, output: bytes, limits: Limits) -> dict[str, Any]:
    try:
        done = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        done = {}
    if status == 0 and "found" in done:
        return dict(done["found"] or {})
    if status == 0 and "refused" in done:
        raise UsageError(str(done["refused"]))
    if status == -getattr(signal, "SIGXCPU", 24):
        raise UsageError(f"{title} takes longer than a file of its size may ({limits.cpu_s:.0f} s of CPU time)")
    if status == -getattr(signal, "SIGXFSZ", 25):
        raise UsageError(f"{title} holds more than a file of its size may")
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    raise UsageError(f"{title} cannot be read: it makes its reader crash ({how})")
