"""Rows of blocks that have ended enter the database while a campaign runs.

A process of its own adds them, so that GPUs do not wait for the database. `kernrec.measure.campaign.ingest` adds the
rest. As a program, this module does it once, for a database and the number of a run of its journal, and prints how many
rows there were.
"""

import subprocess
import sys
import time
from pathlib import Path

from kernrec.errors import KernrecError
from kernrec.measure.campaign.ingest import ingest
from kernrec.measure.campaign.journal import Journal, journal_path
from kernrec.util.process import kill_group, module_command, module_environment, own_group

EVERY_S = 20.0
"""Least seconds between two times that rows enter."""
_REST = 10.0
"""Least pause after rows have entered, in times of what it took."""
_END_S = 120.0
"""Seconds that the end of a campaign waits for rows that are entering."""


class EarlyIngest:
    """The rows of one open journal; call `look` often, and `end` once."""

    def __init__(self, journal: Journal, database: Path) -> None:
        self._command = module_command(__name__, str(database), str(journal.run))
        self._process: subprocess.Popen[bytes] | None = None
        self._begun_s = time.monotonic()
        self._next_s = self._begun_s + EVERY_S
        self.stored = 0
        """Rows that have entered."""

    def look(self) -> None:
        """Start a process if it is time, and count its rows if it is done."""
        if self._process is None and time.monotonic() >= self._next_s:
            self._begun_s = time.monotonic()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=module_environment(),
                **own_group(),
            )
        elif self._process is not None and self._process.poll() is not None:
            self._take()

    def end(self) -> None:
        """Wait for rows that are entering."""
        if self._process is None:
            return
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # a transaction is whole or not there, and its rows are added again
            kill_group(self._process)
        self._take()

    def _take(self) -> None:
        assert self._process is not None
        printed, _ = self._process.communicate()
        self.stored += int(printed) if self._process.returncode == 0 else 0
        self._process = None
        now_s = time.monotonic()
        self._next_s = now_s + max(EVERY_S, _REST * (now_s - self._begun_s))


def main() -> int:
    """Add the rows of ended blocks of a run; return the exit status."""
    database, run = Path(sys.argv[1]), int(sys.argv[2])
    try:
        with Journal(journal_path(database)) as journal:
            print(ingest(journal, database, ended_of=run))
    except (KernrecError, OSError):  # in use, for example; the next process tries again
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
