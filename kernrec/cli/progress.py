"""Show progress on standard error, and handle signals that end a command."""

import os
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from kernrec.util.human import human
from kernrec.util.process import holds_no_lock

if TYPE_CHECKING:
    from kernrec.measure.campaign.results import Progress

_FIRST_S, _LINE_S = 2.0, 10.0
"""Seconds until the first line of a step, and between later lines."""


class Lines:
    """Prints the progress of a campaign."""

    def __init__(self, every_s: float = _LINE_S) -> None:
        self._every_s = every_s
        self._last: dict[str, tuple[str, str, float]] = {}
        """(problem, `Progress.tier`, time of printing in seconds) of the last line, keyed by device."""
        self._best_s: dict[tuple[str, str], float] = {}
        self._failures: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def show(self, progress: "Progress") -> None:
        """Record progress, and print a line if necessary."""
        if progress.note:
            print(f"note: {progress.note}", file=sys.stderr, flush=True)
            return
        device, target, tier = progress.device, progress.target, progress.tier
        if (measurement := progress.measurement) is not None and measurement.outcome != "ok":
            self._failures[device][measurement.outcome] += 1
        elif measurement is not None and measurement.latency_s:
            best_s = self._best_s.get((device, target), float("inf"))
            self._best_s[device, target] = min(best_s, measurement.latency_s)
        *last, shown_s = self._last.get(device, ("", "", 0.0))
        if last != [target, tier] or time.monotonic() - shown_s >= self._every_s:
            self._last[device] = target, tier, time.monotonic()
            print(self._text(progress), file=sys.stderr, flush=True)

    def _text(self, progress: "Progress") -> str:
        parts = [f"{progress.device}: {progress.target}", f"{progress.tier} {progress.done}/{progress.total}"]
        if best_s := self._best_s.get((progress.device, progress.target)):
            parts.append(f"best {human(best_s, 's')}")
        if progress.left_s is not None:
            parts.append(f"{_duration(progress.left_s)} of the budget left")
        failed = self._failures[progress.device].most_common()
        return ", ".join([*parts, *(f"{count} {kind}" for kind, count in failed)])


_printing = threading.Lock()
"""Lock that prevents a fork while a line is printed."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_printing.acquire, after_in_parent=_printing.release, after_in_child=_printing.release)


class Steps:
    """Reports the progress of the steps in a `with` block, from a separate thread."""

    def __init__(self, what: str, first_s: float | None = None) -> None:
        self._step = what, 0.0, 0.0
        self._start = time.monotonic()
        self._first_s = _FIRST_S if first_s is None else first_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)
        holds_no_lock(self._thread)

    def __enter__(self) -> "Steps":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def step(self, what: str, done: float = 0.0, total: float = 0.0) -> None:
        """Set the current step, its completed work, and its total work (0 if unknown)."""
        self._step = what, done, total

    def text(self) -> str:
        what, done, total = self._step
        seconds = time.monotonic() - self._start
        if not done or not total:
            return f"{what}, {_duration(seconds)} so far"
        return f"{what}, about {_duration(seconds / done * (total - done))} left"

    def _report(self) -> None:
        wait_s = self._first_s
        while not self._ended.wait(wait_s):
            with _printing:
                print(self.text(), file=sys.stderr, flush=True)
            wait_s = _LINE_S


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100.0 else f"{seconds / 60.0:.0f} min"


class Ended(KeyboardInterrupt):
    """Error raised if a signal asks the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise `Ended` in the `with` block if SIGTERM or SIGHUP arrives and has no handler yet."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise Ended(number)

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [getattr(signal, name) for name in names]
    default = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in default:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in default:
            signal.signal(number, signal.SIG_DFL)
