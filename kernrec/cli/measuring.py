"""What the commands that measure share: their options, where they measure, and how they run and end."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from kernrec.errors import UsageError, unknown

if TYPE_CHECKING:
    from kernrec.measure.campaign.results import Progress

Shape = Annotated[str | None, typer.Option(help="Dimensions, such as m=4096,n=4096,k=4096.")]
Gpu = Annotated[str, typer.Option("--gpu", help="auto, or the index of a GPU in this machine.")]
Database = Annotated[Path | None, typer.Option(help="Database to read and add to. Default: your own.")]
Device = Annotated[str, typer.Option(help="cuda: measure on a GPU. replay: answer from recorded measurements.")]
Replay = Annotated[Path | None, typer.Option(help="Database whose measurements to replay.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random choices.")]


def check_device(device: str, replay: Path | None, db: Path | None) -> None:
    """Raises `UsageError` where --device, --replay and --db do not go together."""
    from kernrec.measure.collect import DEVICES

    if device not in DEVICES:
        raise unknown("device", device, DEVICES)
    if device != "replay" and replay is not None:
        raise UsageError(f"--replay {replay} goes with --device replay, but --device is {device}")
    if device == "replay" and replay is None:
        raise UsageError("--device replay needs --replay, a database of measurements to answer from")
    if device == "replay" and db is None:
        raise UsageError("--device replay needs --db, so that replayed rows are not mixed with your measurements")


class Stop:
    """Notices SIGINT and SIGTERM: calling it returns whether there was one; a second one ends the program as usual."""

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


class MeasuredResult(Protocol):
    """What a measuring call returns, as far as its end is concerned."""

    @property
    def error(self) -> str | None:
        """What ended it early, in one line."""

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""


Result = TypeVar("Result", bound=MeasuredResult)


def run_measuring(
    measure: "Callable[[Callable[[Progress], None], Callable[[], bool]], Result]", show: Callable[[Result], None]
) -> None:
    """Measure with progress on standard error, show the result, and end with its exit status.

    Args:
        measure: called with what takes its progress, and with what says whether to stop.
        show: prints what was measured, also of a run that ended early.
    """
    from kernrec.cli.progress import display

    stop = Stop()
    with stop, display() as report:
        result = measure(report, stop)
    show(result)
    if result.error is not None:
        print(f"kernrec: {result.error}", file=sys.stderr)
        raise typer.Exit(1)
    if result.stopped:
        print("kernrec: interrupted", file=sys.stderr)
        raise typer.Exit(stop.status)
