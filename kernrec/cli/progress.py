"""Show progress of a campaign on standard error: a live panel on a terminal, else a line every ten seconds."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernrec.util.human import human

if TYPE_CHECKING:
    from rich.table import Table

    from kernrec.measure.campaign.results import Progress

_LINE_EVERY_S = 10.0


@contextmanager
def display() -> "Iterator[Callable[[Progress], None]]":
    """Yield a function that shows progress while the campaign runs."""
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
    """Return a small table per device."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for device in state.devices:
        for name, value in state.figures(device):
            table.add_row(Text(name, "dim"), Text(value))
    return table


class Lines:
    """Progress as plain lines: every note, the first row of each tier of a problem, then one line every ten seconds."""

    def __init__(self, every_s: float = _LINE_EVERY_S) -> None:
        self._every_s = every_s
        self._state = State()
        self._last: dict[str, tuple[str, str, float]] = {}

    def show(self, progress: "Progress") -> None:
        """Record a step, and print a line if one is due."""
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
    """Progress of one device."""

    latest: "Progress"
    tier_began: tuple[float, int]
    """(start time, first step) of the current tier of the current problem."""
    steps: int = 0
    best_s: float = float("inf")
    """Lowest latency of the current problem, in seconds."""
    failures: Counter[str] = field(default_factory=Counter)


class State:
    """Progress of the campaign on each device."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self.devices: dict[str, _Device] = {}

    def take(self, progress: "Progress") -> None:
        """Record a measurement."""
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
        """Return (name, value) pairs to show for a device."""
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
    """Return the remaining budget. Without a budget, estimate the time left for the current tier from its rate."""
    latest, (began_s, first) = device.latest, device.tier_began
    if latest.left_s is not None:
        return f"{latest.left_s / 60.0:.0f} min of the budget"
    if latest.done == first:
        return ""
    seconds = (time.monotonic() - began_s) / (latest.done - first) * (latest.total - latest.done)
    time_left = f"about {seconds / 60.0:.0f} min" if seconds >= 60.0 else f"{seconds:.0f} s"
    return f"{time_left} of {latest.tier}"
