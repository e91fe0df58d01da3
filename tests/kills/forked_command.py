"""A `kernrec` command in a fork of this process, which has imported what the command needs.

To start Python and to import takes two thirds of a short command, and a kill in that time finds nothing to damage.
Processes that the command starts (readers of files, workers) are those of every day.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

_IMPORTED = (
    "kernrec.cli.collect", "kernrec.cli.contribute", "kernrec.measure.card_plan", "kernrec.cli.db", "kernrec.cli.train",
    "kernrec.cli.bundle", "kernrec.measure.campaign.campaign", "kernrec.measure.campaign.ingest",
    "kernrec.measure.collect", "kernrec.store.intake", "kernrec.store.share.withdraw", "kernrec.store.share.pull",
    "kernrec.store.share.push", "kernrec.store.keys",
)  # fmt: skip


class ForkedCommand:
    """A command that runs, in a process group of its own.

    Args:
        arguments: of `kernrec`.
        variables: its environment.
        output: a file for what it prints; None: that goes nowhere.
        folder: that it works in; None: that of this process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        output: Path | None = None,
        folder: Path | None = None,
    ) -> None:
        for module in _IMPORTED:
            import_module(module)
        self._status: int | None = None
        if (pid := os.fork()) == 0:
            _become(arguments, variables, output or Path(os.devnull), folder or Path.cwd())
        self._pid = pid
        with suppress(PermissionError):  # the fork does the same, and may have done it already
            os.setpgid(pid, pid)

    @property
    def status(self) -> int | None:
        """The exit status, below 0 after a signal; None: it runs."""
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def wait(self, most_s: float = float("inf")) -> int | None:
        """Its status once it has ended; None: it ran for `most_s` and still does."""
        end_s = time.monotonic() + most_s
        while self.status is None and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(0.003, left_s))
        return self.status

    def kill(self) -> bool:
        """`kill -9`; whether it still ran."""
        if self.status is not None:
            return False
        os.killpg(self._pid, signal.SIGKILL)
        return self.wait() == -signal.SIGKILL


def _become(arguments: Sequence[str], variables: Mapping[str, str], output: Path, folder: Path) -> None:
    """In the fork: be the command, and end."""
    status = 70
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.stdout = os.fdopen(1, "w", closefd=False)  # pytest's leads elsewhere
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        tempfile.tempdir = None
        from kernrec.cli.app import run

        status = run(arguments)
        sys.stdout.flush()
    finally:  # nothing of the caller's runs in this process
        os._exit(status)
