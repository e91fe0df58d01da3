"""Define the options of commands that measure, and run these commands until they end or a signal stops them."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernrec.cli.format import print_notes
from kernrec.cli.quantity import hertz, watts
from kernrec.cli.steps import Steps
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.measure.request import CollectResult, Report, Stopping
    from kernrec.recommender.estimate.operating_point import OperatingPoint


def present(text: str) -> str:
    """Return the value of --gpu for a measurement. Raises `UsageError` for a GPU file."""
    if text.lower().endswith(".toml"):
        raise UsageError(f"--gpu {text} is a GPU file for predictions; to measure, name a GPU of this machine")
    return text


Gpu = Annotated[str, typer.Option("--gpu", callback=present, help="auto, or the index of a GPU in this machine.")]

_SHIPPED = "shipped"
"""Value of --replay that names the shipped recording."""
Replay = Annotated[
    str | None,
    typer.Option(help="Without a GPU: a database whose measurements are replayed, or `shipped` for a recorded space."),
]
SetPowerLimit = Annotated[
    str | None,
    typer.Option(help="Power limits to set on the GPU and to measure at, such as 200W,250W; restored afterwards."),
]
LockClocks = Annotated[
    str | None,
    typer.Option(
        help="Core clocks to lock the GPU to and to measure at, such as 1200MHz,1410MHz; unlocked afterwards."
    ),
]
Cluster = Annotated[
    str | None, typer.Option(help="Measure on a Ray cluster: auto, or host:port of its head node.", metavar="ADDRESS")
]


def replay_files(replay: str | None, db: Path | None) -> tuple[Path | None, Path | None]:
    """Return (recording of --replay, database). Raises `UsageError` if they conflict."""
    if replay is None:
        return None, db
    if replay != _SHIPPED:
        if db is None:
            raise UsageError("--replay needs --db, so that replayed rows are not mixed with your measurements")
        return Path(replay), db
    from kernrec.measure.device.replay import DESCRIPTION, replayed_database, shipped_recording

    chosen = db or replayed_database()
    with Steps("reading the recorded space that ships"):
        file = shipped_recording()
    print_notes([f"{DESCRIPTION}; rows go to {chosen}"])
    return file, chosen


def limits(set_power_limit: str | None, lock_clocks: str | None, replayed: bool) -> "tuple[OperatingPoint, ...]":
    """Return the operating points of --set-power-limit and --lock-clocks; without these, only the GPU's current one."""
    from kernrec.measure.collect import operating_points

    for flag, text in (("--set-power-limit", set_power_limit), ("--lock-clocks", lock_clocks)):
        if text is not None and replayed:
            raise UsageError(f"{flag} {text} cannot be used with --replay, which uses the recorded settings")
    return operating_points(
        [watts("--set-power-limit", part) for part in (set_power_limit or "").split(",") if set_power_limit],
        [hertz("--lock-clocks", part) for part in (lock_clocks or "").split(",") if lock_clocks],
    )


def limit_text(point: "OperatingPoint") -> str:
    """Describe the power limit and clock that kernrec set; empty for the GPU's current settings."""
    limit = [] if point.power_limit_w is None else [f"power limit {point.power_limit_w:g} W"]
    clock = [] if point.clock_hz is None else [f"clock locked to {point.clock_hz / 1e6:g} MHz"]
    return ", ".join(limit + clock)


class Stop:
    """Callable that returns whether SIGINT or SIGTERM arrived. A second signal ends the program as usual."""

    def __init__(self) -> None:
        self._stopping = False
        self._before: dict[int, Any] = {}
        self.status = 130
        """Exit status of a program that a signal ended."""

    def __call__(self) -> bool:
        return self._stopping

    def __enter__(self) -> "Stop":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._stopping, self.status = True, 128 + number
        for handled, handler in self._before.items():
            signal.signal(handled, handler)


def run_measuring(
    measure: "Callable[[Report, Stopping], CollectResult]", show: "Callable[[CollectResult], None]"
) -> None:
    """Run one measurement like `run_each`."""
    from kernrec.recommender.estimate.operating_point import DEFAULT_POINT

    run_each(lambda report, stopping: [(DEFAULT_POINT, measure(report, stopping))], show)


def run_each(
    measure: "Callable[[Report, Stopping], list[tuple[OperatingPoint, CollectResult]]]",
    show: "Callable[[CollectResult], None]",
) -> None:
    """Measure with progress on standard error, show the results, and exit with the last measurement's status.

    Args:
        measure: Takes a function that reports progress and a function that returns whether to stop.
        show: Prints what was measured, even if the measurement ended early.
    """
    from kernrec.cli.progress import display

    stop = Stop()
    with stop, display() as report:
        results = measure(report, stop)
    for point, result in results:
        if text := limit_text(point):
            print(text)
        show(result)
    if result.error is not None:
        print(f"kernrec: {result.error}", file=sys.stderr)
        raise typer.Exit(1)
    if result.stopped:
        print("kernrec: interrupted", file=sys.stderr)
        raise typer.Exit(stop.status)
