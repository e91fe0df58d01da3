"""Progress of a running campaign on standard error: a live panel on a terminal, a line every ten seconds elsewhere."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kernrec.util.human import human

if TYPE_CHECKING:
    from rich.table import Table

    from kernrec.measure.campaign.results import Progress

_LINE_EVERY_S = 10.0


@contextmanager
def display() -> "Iterator[Callable[[Progress], None]]":
    """A function to report progress to, as long as the campaign runs."""
    if not sys.stderr.isatty():
        yield Lines().show
        return
    from rich.console import Console
    from rich.live import Live

    panel = Panel()
    console = Console(stderr=True, highlight=False)
    with Live(get_renderable=panel.table, console=console, refresh_per_second=4, transient=True):

        def show(progress: "Progress") -> None:
            if progress.note:
                console.print(f"note: {progress.note}")
            panel.show(progress)

        yield show


class Lines:
    """Plain lines: every note, the first row of each tier of a problem, and one every ten seconds after it."""

    def __init__(self, every_s: float = _LINE_EVERY_S) -> None:
        self._every_s = every_s
        self._state = State()
        self._last: dict[str, tuple[str, str, float]] = {}

    def show(self, progress: "Progress") -> None:
        """Take a step into account, and print a line if one is due."""
        if progress.note:
            print(f"note: {progress.note}", file=sys.stderr, flush=True)
            return
        self._state.take(progress)
        target, tier, shown_s = self._last.get(progress.device, ("", "", 0.0))
        now = time.monotonic()
        if (target, tier) != (progress.target, progress.tier) or now - shown_s >= self._every_s:
            self._last[progress.device] = (progress.target, progress.tier, now)
            print(", ".join(f"{name} {value}" for name, value in self._state.figures(progress.device)), file=sys.stderr,
                  flush=True)  # fmt: skip


class Panel:
    """A small table for each device, redrawn four times a second."""

    def __init__(self) -> None:
        self._state = State()

    def show(self, progress: "Progress") -> None:
        """Take a step into account."""
        if not progress.note:
            self._state.take(progress)

    def table(self) -> "Table":
        """The present table."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for device in self._state.devices():
            for name, value in self._state.figures(device):
                table.add_row(Text(name, "dim"), Text(value))
        return table


class State:
    """Progress of the campaign on each device."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._latest: dict[str, Progress] = {}
        self._best: dict[tuple[str, str], float] = {}
        self._counts: Counter[str] = Counter()
        self._failures: dict[str, Counter[str]] = {}
        self._tier: dict[str, tuple[str, str, float, int]] = {}  # by device: problem, tier, start time, first step

    def devices(self) -> list[str]:
        """The devices that have reported."""
        return list(self._latest)

    def take(self, progress: "Progress") -> None:
        """Take a measurement into account."""
        measurement = progress.measurement
        self._latest[progress.device] = progress
        if self._tier.get(progress.device, ("", ""))[:2] != (progress.target, progress.tier):
            self._tier[progress.device] = (progress.target, progress.tier, time.monotonic(), progress.done)
        self._counts[progress.device] += 1
        if measurement is not None and measurement.outcome == "ok":
            key = (progress.device, progress.target)
            self._best[key] = min(self._best.get(key, float("inf")), measurement.latency_s or float("inf"))
        elif measurement is not None:
            self._failures.setdefault(progress.device, Counter())[measurement.outcome] += 1

    def figures(self, device: str) -> list[tuple[str, str]]:
        """(name, value) of everything that is shown for a device."""
        latest = self._latest[device]
        report = latest.measurement.report if latest.measurement else None
        power_w = report.energy.power_w if report else None
        temperature_c = report.state.temperature_end_c if report else None
        best = self._best.get((device, latest.target))
        rate = self._counts[device] / max(1e-9, time.monotonic() - self._start)
        failures = self._failures.get(device, Counter())
        shown = [
            ("device", device),
            ("problem", latest.target),
            (latest.tier, f"{latest.done}/{latest.total}"),
            ("best", human(best, "s") if best else ""),
            ("rate", f"{rate:.3g}/s"),
            ("power", f"{power_w:.0f} W" if power_w else ""),
            ("temperature", f"{temperature_c:.0f} C" if temperature_c else ""),
            ("left", self._left(latest)),
            ("failed", " ".join(f"{kind} {count}" for kind, count in failures.most_common())),
        ]
        return [(name, value) for name, value in shown if value]

    def _left(self, latest: "Progress") -> str:
        """Time left of the budget; without a budget, of the problem's tier at the rate so far."""
        if latest.left_s is not None:
            return f"{latest.left_s / 60.0:.0f} min of the budget"
        _, _, since, first = self._tier[latest.device]
        if latest.done == first:
            return ""
        seconds = (time.monotonic() - since) / (latest.done - first) * (latest.total - latest.done)
        return (
            f"about {seconds / 60.0:.0f} min of {latest.tier}"
            if seconds >= 60.0
            else f"{seconds:.0f} s of {latest.tier}"
        )
