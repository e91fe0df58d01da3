"""Being told to end while there is something to keep: SIGTERM and a closed terminal stop a command as Ctrl-C does."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Ended(KeyboardInterrupt):
    """A signal that asks a program to end, with its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_status(stop: KeyboardInterrupt) -> int:
    """What a shell expects of a program that ended so: 128 and the signal."""
    return 128 + (stop.number if isinstance(stop, Ended) else signal.SIGINT)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within, such signals are raised as `Ended`; one that somebody has handled or ignored already is left to that."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise Ended(number)

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [getattr(signal, name) for name in names]
    taken = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
