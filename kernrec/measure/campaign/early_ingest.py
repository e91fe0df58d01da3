"""Rows enter the database while a campaign runs: those of blocks that have ended, every now and then.

A process of its own adds them, so that cards do not wait for the database; it reads the journal, which goes on growing.
Once they are in the database the journal leaves them out. If either is killed in between, they are added once more,
which changes nothing. The rest is left to `ingest`.

As a program it does that once, for the journal, the number of its bytes and the database that it is given. It prints
how many rows there were, and then the lines that the journal still needs.
"""

import math
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from kernrec.errors import KernrecError
from kernrec.measure.campaign.ingest import ingest_ended
from kernrec.measure.campaign.journal import Journal
from kernrec.util.process import kill_group, module_environment, own_group

EVERY_S = 20.0
"""How often rows enter at most."""
_REST = 10.0
"""How long nothing enters after that, at least, in times of what it took."""
_END_S = 120.0
"""How long the end of a campaign waits for rows that are entering."""


class EarlyIngest:
    """The rows of one open journal; `look` often, and `end` before the journal is used for anything but appending."""

    def __init__(self, journal: Journal, database: Path) -> None:
        """Begin: the first rows enter after `EVERY_S`."""
        self._journal = journal
        self._database = database
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._size = 0
        self._begun_s = time.monotonic()
        self._next_s = self._begun_s + EVERY_S
        self.stored = 0
        """Rows that have entered."""

    def look(self) -> None:
        """Start a process where it is time, and take its rows out of the journal where it is done."""
        if self._process is not None:
            if self._process.poll() is not None:
                self._take()
        elif time.monotonic() >= self._next_s and self._journal.size > self._size:
            self._start()

    def end(self) -> None:
        """Wait for what is under way."""
        if self._process is None:
            return
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # what it adds is whole or not there, and is added again
            kill_group(self._process)
            self._process.wait()
        self._take()

    def _start(self) -> None:
        if os.name == "nt":  # which does not replace a file that is open
            self._next_s = math.inf
            return
        self._size, self._begun_s = self._journal.size, time.monotonic()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - `_take` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self._journal.path), str(self._size), str(self._database)],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.DEVNULL,
            env=module_environment(),
            **own_group(),
        )

    def _take(self) -> None:
        assert self._process is not None
        assert self._output is not None
        with self._output as output:
            output.seek(0)
            count, needed = output.readline(), output.read()
        if self._process.returncode == 0:
            with suppress(OSError):  # the journal keeps them, and they are added again
                self._journal.replace_first(self._size, needed)
                self.stored += int(count)
                self._size = len(needed)
        self._process = self._output = None
        now_s = time.monotonic()
        self._next_s = now_s + max(EVERY_S, _REST * (now_s - self._begun_s))


def main() -> int:
    """Add the rows of a journal; returns the exit status."""
    journal, size, database = sys.argv[1:]
    try:
        stored, needed = ingest_ended(Path(journal), int(size), Path(database))
    except (KernrecError, OSError):  # in use, for example; it is tried again
        return 1
    sys.stdout.buffer.write(f"{stored}\n".encode() + needed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
