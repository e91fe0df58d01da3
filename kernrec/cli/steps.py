"""Print the progress of a long command on standard error, after the first two seconds.

The line shows the time left if the completed fraction is known, else the time since the step began. A terminal has one
line that is rewritten; other streams get a line every ten seconds.
"""

import os
import sys
import threading
import time
from types import TracebackType

from kernrec.util.process import holds_no_lock

_FIRST_S, _LIVE_S, _LINE_S = 2.0, 0.5, 10.0
_printing = threading.Lock()
"""Lock held while a line is printed, and while this process forks."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_printing.acquire, after_in_parent=_printing.release, after_in_child=_printing.release)


class Steps:
    """Reports the current step of a `with` block in a separate thread, because the block may be busy in a library."""

    def __init__(self, what: str, first_s: float | None = None) -> None:
        self._lock = threading.Lock()
        self._what, self._done, self._total = what, 0.0, 0.0
        self._start = time.monotonic()
        self._first_s = _FIRST_S if first_s is None else first_s
        self._live = sys.stderr.isatty()
        self._open = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)
        holds_no_lock(self._thread)

    def __enter__(self) -> "Steps":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def step(self, what: str, done: float = 0.0, total: float = 0.0) -> None:
        """Begin a step.

        Args:
            done: Completed work when the step begins.
            total: Total work; 0 if unknown.
        """
        with self._lock:
            self._what, self._done, self._total = what, done, total

    def end(self) -> None:
        """Stop reporting, and remove the line from a terminal."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self.remove_line()

    def remove_line(self) -> None:
        """Clear the line on a terminal so that other text can be printed; the line then appears again below."""
        if self._open:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._open = False

    def text(self) -> str:
        """Return the current line."""
        with self._lock:
            what, done, total = self._what, self._done, self._total
        seconds = time.monotonic() - self._start
        if not done or not total:
            return f"{what}, {_duration(seconds)} so far"
        return f"{what}, about {_duration(seconds / done * (total - done))} left"

    def _report(self) -> None:
        wait_s = self._first_s
        while not self._ended.wait(wait_s):
            line = self.text()
            shown, end = (f"\r\x1b[K{line}", "") if self._live else (line, "\n")
            with _printing:
                print(shown, end=end, file=sys.stderr, flush=True)
            self._open = self._live
            wait_s = _LIVE_S if self._live else _LINE_S


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100.0 else f"{seconds / 60.0:.0f} min"
