"""What a running campaign shows on standard error: a live panel on a terminal, a line now and then elsewhere."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kernrec.cli.quantity import human

if TYPE_CHECKING:
    from rich.table import Table

    from kernrec.measure.campaign.results import Progress

_LINE_EVERY_S = 10.0


@contextmanager
def display() -> "Iterator[Callable[[Progress], None]]":
    """Gives what a campaign reports its progress to, as long as the campaign runs."""
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
        """Take in a step, and say so when it is time to."""
        if progress.note:
            print(f"note: {progress.note}", file=sys.stderr, flush=True)
            return
        self._state.take(progress)
        target, tier, at = self._last.get(progress.device, ("", "", 0.0))
        now = time.monotonic()
        if (target, tier) != (progress.target, progress.tier) or now - at >= self._every_s:
            self._last[progress.device] = (progress.target, progress.tier, now)
            print(", ".join(f"{name} {value}" for name, value in self._state.figures(progress.device)), file=sys.stderr,
                  flush=True)  # fmt: skip


class Panel:
    """A small table for each device, drawn anew four times a second."""

    def __init__(self) -> None:
        self._state = State()

    def show(self, progress: "Progress") -> None:
        """Take in a step."""
        if not progress.note:
            self._state.take(progress)

    def table(self) -> "Table":
        """The table as it is now."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for device in self._state.devices():
            for name, value in self._state.figures(device):
                table.add_row(Text(name, "dim"), Text(value))
        return table


class State:
    """What is known of the campaign on each device."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._latest: dict[str, Progress] = {}
        self._best: dict[tuple[str, str], float] = {}
        self._counts: Counter[str] = Counter()
        self._failures: dict[str, Counter[str]] = {}
        self._tier: dict[str, tuple[str, str, float, int]] = {}  # what each device is at, since when and which row

    def devices(self) -> list[str]:
        """The devices that have reported."""
        return list(self._latest)

    def take(self, progress: "Progress") -> None:
        """One more row."""
        row = progress.row or {}
        self._latest[progress.device] = progress
        if self._tier.get(progress.device, ("", ""))[:2] != (progress.target, progress.tier):
            self._tier[progress.device] = (progress.target, progress.tier, time.monotonic(), progress.done)
        self._counts[progress.device] += 1
        if row.get("outcome") == "ok":
            key = (progress.device, progress.target)
            self._best[key] = min(self._best.get(key, float("inf")), row["latency_s"])
        else:
            self._failures.setdefault(progress.device, Counter())[str(row.get("outcome"))] += 1

    def figures(self, device: str) -> list[tuple[str, str]]:
        """(name, value) of everything worth showing of a device."""
        latest = self._latest[device]
        row: Any = latest.row or {}
        best = self._best.get((device, latest.target))
        rate = self._counts[device] / max(1e-9, time.monotonic() - self._start)
        failures = self._failures.get(device, Counter())
        shown = [
            ("device", device),
            ("problem", latest.target),
            (latest.tier, f"{latest.done}/{latest.total}"),
            ("best", human(best, "s") if best else ""),
            ("rate", f"{rate:.3g}/s"),
            ("power", f"{row['power_w']:.0f} W" if row.get("power_w") else ""),
            ("temperature", f"{row['temperature_end_c']:.0f} C" if row.get("temperature_end_c") else ""),
            ("left", self._left(latest)),
            ("failed", " ".join(f"{kind} {count}" for kind, count in failures.most_common())),
        ]
        return [(name, value) for name, value in shown if value]

    def _left(self, latest: "Progress") -> str:
        """Of the budget; without one, of the problem's tier at the rate so far."""
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
