"""Stop on SIGTERM and on a closed terminal (SIGHUP) like on Ctrl-C, so that a command can save its results."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Ended(KeyboardInterrupt):
    """A signal (number `signal`) asks the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_status(stop: KeyboardInterrupt) -> int:
    """Return the exit status of a program that a signal ended: 128 plus the signal's number."""
    return 128 + (stop.number if isinstance(stop, Ended) else signal.SIGINT)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """While the `with` block runs, raise these signals as `Ended`, unless they are already handled or ignored."""

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
