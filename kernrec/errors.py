"""What kernrec raises: one base class, a subclass for misuse, and the "nearest known name" message.

The command line prints the message of a `KernrecError` on one line and exits with its `exit_status`;
library callers catch it like any exception.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class KernrecError(Exception):
    """Something kernrec was asked for could not be done; the message is one line."""

    exit_status = 1


class UsageError(KernrecError):
    """What was given cannot be used: unknown name, impossible value, wrong kind of file."""

    exit_status = 2


def nearest(given: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names closest to `given`, best first; compares without case, spaces, '-' and '_'."""

    def fold(name: str) -> str:
        return "".join(c for c in name.lower() if c.isalnum())

    names = list(known)
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(fold(name), name)
    close = [folded[f] for f in get_close_matches(fold(given), folded, n=count, cutoff=0.5)]
    starts = [n for f, n in folded.items() if fold(given) and f.startswith(fold(given))]
    return list(dict.fromkeys(close + starts))[:count]


def unknown(kind: str, given: object, known: Iterable[str], see: str | None = None) -> UsageError:
    """A `UsageError` for a name nobody knows, naming the nearest known ones.

    `see` is the command that lists them all, shown when it is given.
    """
    names = list(known)
    close = nearest(str(given), names)
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    elif len(names) <= 12:
        hint = f"known: {', '.join(names)}" if names else "there is none"
    else:
        hint = f"{len(names)} are known"
    if see:
        hint += f" (`{see}` lists them)"
    return UsageError(f"unknown {kind} {str(given)!r}; {hint}")
