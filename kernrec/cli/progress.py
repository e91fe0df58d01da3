"""Show progress on standard error, and handle signals that end a command.

`Steps` reports on long steps, such as reading a database. After two seconds, it prints a line with the remaining time
if the completed fraction is known, or otherwise with the elapsed time. `display` shows the progress of a measurement
campaign as a live panel. If standard error is not a terminal, both print a line about every ten seconds instead.

`ended_by_signals` treats SIGTERM and SIGHUP (a closed terminal) like Ctrl-C, so that a command can save its results.
"""

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn

from kernrec.util.human import human
from kernrec.util.process import holds_no_lock

if TYPE_CHECKING:
    from rich.table import Table

    from kernrec.measure.campaign.results import Progress

_FIRST_S, _LIVE_S, _LINE_S = 2.0, 0.5, 10.0
"""Seconds until the first line of a step, between updates on a terminal, and between lines without a terminal."""


@contextmanager
def display() -> "Iterator[Callable[[Progress], None]]":
    """Show the progress of a measurement campaign during the `with` block. Yield the function that reports progress."""
    if not sys.stderr.isatty():
        yield Lines().show
        return
    from rich.console import Console
    from rich.live import Live

    state = State()
    console = Console(stderr=True, highlight=False)
    with Live(get_renderable=lambda: _table(state), console=console, refresh_per_second=4, transient=True):

        def show(progress: "Progress") -> None:
            if progress.note:
                console.print(f"note: {progress.note}")
            else:
                state.take(progress)

        yield show


def _table(state: "State") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for device in state.devices:
        for name, value in state.figures(device):
            table.add_row(Text(name, "dim"), Text(value))
    return table


class Lines:
    """Prints campaign progress as plain lines: all notes, each new problem or tier, and a line every ten seconds."""

    def __init__(self, every_s: float = _LINE_S) -> None:
        self._every_s = every_s
        self._state = State()
        self._last: dict[str, tuple[str, str, float]] = {}

    def show(self, progress: "Progress") -> None:
        """Record progress, and print a line if it is time for one."""
        if progress.note:
            print(f"note: {progress.note}", file=sys.stderr, flush=True)
            return
        self._state.take(progress)
        target, tier, shown_s = self._last.get(progress.device, ("", "", 0.0))
        now_s = time.monotonic()
        if (target, tier) != (progress.target, progress.tier) or now_s - shown_s >= self._every_s:
            self._last[progress.device] = (progress.target, progress.tier, now_s)
            figures = (f"{name} {value}" for name, value in self._state.figures(progress.device))
            print(", ".join(figures), file=sys.stderr, flush=True)


@dataclass
class _Device:
    """Progress of the campaign on one device."""

    latest: "Progress"
    tier_began: tuple[float, int]
    """(time in seconds at which the current tier of the problem began, number of steps that were completed before)."""
    steps: int = 0
    best_s: float = float("inf")
    """Lowest latency of the current problem, in seconds."""
    failures: Counter[str] = field(default_factory=Counter)


class State:
    """Progress of a measurement campaign on all devices."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self.devices: dict[str, _Device] = {}

    def take(self, progress: "Progress") -> None:
        """Record the progress that a device reports, and its measurement if there is one."""
        began = (time.monotonic(), progress.done)
        device = self.devices.setdefault(progress.device, _Device(progress, began))
        if progress.target != device.latest.target:
            device.best_s = float("inf")
        if (progress.target, progress.tier) != (device.latest.target, device.latest.tier):
            device.tier_began = began
        device.latest = progress
        device.steps += 1
        if (measurement := progress.measurement) is None:
            return
        if measurement.outcome == "ok":
            device.best_s = min(device.best_s, measurement.latency_s or float("inf"))
        else:
            device.failures[measurement.outcome] += 1

    def figures(self, name: str) -> list[tuple[str, str]]:
        """Return the figures to show for a device, as (label, text) pairs."""
        device = self.devices[name]
        latest = device.latest
        report = latest.measurement.report if latest.measurement else None
        power_w = report.energy.power_w if report else None
        temperature_c = report.state.temperature_end_c if report else None
        shown = [
            ("device", name),
            ("problem", latest.target),
            (latest.tier, f"{latest.done}/{latest.total}"),
            ("best", human(device.best_s, "s") if device.best_s < float("inf") else ""),
            ("rate", f"{device.steps / max(1e-9, time.monotonic() - self._start_s):.3g}/s"),
            ("power", f"{power_w:.0f} W" if power_w else ""),
            ("temperature", f"{temperature_c:.0f} C" if temperature_c else ""),
            ("left", _left(device)),
            ("failed", " ".join(f"{kind} {count}" for kind, count in device.failures.most_common())),
        ]
        return [(name, value) for name, value in shown if value]


def _left(device: _Device) -> str:
    """Describe the remaining budget. Without a budget of time, estimate the remaining time of the current tier."""
    latest, (began_s, first) = device.latest, device.tier_began
    if latest.left_s is not None:
        return f"{latest.left_s / 60.0:.0f} min of the budget"
    if latest.done == first:
        return ""
    seconds = (time.monotonic() - began_s) / (latest.done - first) * (latest.total - latest.done)
    time_left = f"about {seconds / 60.0:.0f} min" if seconds >= 60.0 else f"{seconds:.0f} s"
    return f"{time_left} of {latest.tier}"


_printing = threading.Lock()
"""Lock that is held while a line is printed and while this process forks, so that no fork interrupts the printing."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_printing.acquire, after_in_parent=_printing.release, after_in_child=_printing.release)


class Steps:
    """Reports the progress of the steps in a `with` block. A separate thread prints the lines."""

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
        """Set the current step, its completed work, and its total work in the same unit (0 if unknown)."""
        with self._lock:
            self._what, self._done, self._total = what, done, total

    def end(self) -> None:
        """Stop the reports, and clear the line on a terminal."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self.remove_line()

    def remove_line(self) -> None:
        """Clear the line on a terminal, so that other text can be printed. The next report appears below this text."""
        if self._open:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._open = False

    def text(self) -> str:
        """Return the current line: the step, and its remaining or elapsed time."""
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


class Ended(KeyboardInterrupt):
    """A signal asks the program to end. The attribute `number` is the number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_status(stop: KeyboardInterrupt) -> int:
    """Return the exit status for a program that a signal ended: 128 plus the number of the signal."""
    return 128 + (stop.number if isinstance(stop, Ended) else signal.SIGINT)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise `Ended` if SIGTERM or SIGHUP arrives in the block, unless the process already handles or ignores it."""

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
