"""Run a `kernrec` command in a fork of this process, which has imported the command's modules. Starting Python takes
two thirds of a short command's time, and a kill during the start would test nothing."""

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
    "kernrec.cli.collect", "kernrec.cli.contribute", "kernrec.measure.gpu_plan", "kernrec.cli.db", "kernrec.cli.train",
    "kernrec.cli.db", "kernrec.measure.campaign.campaign", "kernrec.measure.campaign.ingest",
    "kernrec.measure.collect", "kernrec.store.intake", "kernrec.store.share.withdraw", "kernrec.store.share.pull",
    "kernrec.store.share.push", "kernrec.store.keys",
)  # fmt: skip


class ForkedCommand:
    """A running `kernrec` command in a separate process group, with standard output to a file or None."""

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
        self._arguments = arguments
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the command
        if (pid := os.fork()) == 0:
            _become(arguments, variables, output or Path(os.devnull), self._errors.fileno(), folder or Path.cwd())
        self._pid = pid
        with suppress(PermissionError):  # the child sets its group too, possibly earlier
            os.setpgid(pid, pid)

    @property
    def status(self) -> int | None:
        """Exit status, negative after a signal, or None while the command runs."""
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def wait(self, most_s: float = float("inf")) -> int | None:
        """Wait at most `most_s` seconds for the command. Return its exit status, or None if it still runs."""
        end_s = time.monotonic() + most_s
        while self.status is None and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(0.003, left_s))
        return self.status

    def succeed(self) -> None:
        """Wait until the command ends. Raises `AssertionError` with its last error output if it failed."""
        if status := self.wait():
            self._errors.seek(0)
            words = self._errors.read()[-2000:].decode(errors="replace")
            raise AssertionError(f"kernrec {' '.join(self._arguments)} ended with status {status}: {words}")

    def kill(self) -> bool:
        """Kill the command with SIGKILL. Return whether it was still running."""
        if self.status is not None:
            return False
        os.killpg(self._pid, signal.SIGKILL)
        return self.wait() == -signal.SIGKILL


def _become(arguments: Sequence[str], variables: Mapping[str, str], output: Path, errors: int, folder: Path) -> None:
    """Run the command in the forked process with standard error to the file descriptor `errors`, then exit."""
    status = 70
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
        os.dup2(errors, 2)
        sys.stdout = os.fdopen(1, "w", closefd=False)  # pytest has replaced sys.stdout
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        tempfile.tempdir = None
        from kernrec.cli.app import run

        status = run(arguments)
        sys.stdout.flush()
    finally:  # never return to the caller's code
        os._exit(status)
