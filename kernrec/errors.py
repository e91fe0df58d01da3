"""What kernrec raises: one base class, a subclass for misuse, and the "nearest known name" message.

The command line prints the message of a `KernrecError` on one line and exits with its `exit_status`;
library callers catch it like any exception.
"""

from collections.abc import Iterable


class KernrecError(Exception):
    """Something kernrec was asked for could not be done; the message is one line."""

    exit_status = 1


class UsageError(KernrecError):
    """What was given cannot be used: unknown name, impossible value, wrong kind of file."""

    exit_status = 2


def nearest(given: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names closest to `given`, at most `count`; compares without case, spaces, '-' and '_'.

    Names that begin with it, shortest first; where none does, those that the fewest slips of the keyboard turn into it;
    else the longest that it begins with.
    """
    wanted = _fold(given)
    folded: dict[str, str] = {}
    for name in known:
        folded.setdefault(_fold(name), name)
    if wanted and (longer := sorted((name for name in folded if name.startswith(wanted)), key=len)):
        return [folded[name] for name in longer[:count]]
    slips = {name: _slips(wanted, name) for name in folded}
    close = [name for name, number in slips.items() if number <= max(1, _MOST_SLIPS * max(len(wanted), len(name)))]
    if not close:
        begun = [name for name in folded if len(name) >= _LEAST_BEGUN and wanted.startswith(name)]
        return [folded[max(begun, key=len)]] if begun else []
    least = min((slips[name] for name in close), default=0)
    # Of equals those with the same letters: swapping two is the commoner slip.
    close = sorted((name for name in close if slips[name] == least), key=lambda name: sorted(name) != sorted(wanted))
    return [folded[name] for name in close][:count]


_LONGEST = 80  # letters of what was given that are looked at
_LEAST_BEGUN = 3  # letters of a known name that what was given begins with: many words begin with `m`
_MOST_SLIPS = 0.4
"""Of the letters of the longer name: with more of them wrong it is another one."""


def _fold(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _slips(one: str, other: str) -> int:
    """Letters added, left out, mistaken or swapped with their neighbour: the optimal string alignment distance."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        row = [i]
        for j, wanted in enumerate(other, start=1):
            row.append(min(row[-1] + 1, last[j] + 1, last[j - 1] + (letter != wanted)))
            if i > 1 and j > 1 and one[i - 2] == wanted and letter == other[j - 2]:
                row[-1] = min(row[-1], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def unknown(kind: str, given: object, known: Iterable[str], see: str | None = None) -> UsageError:
    """A `UsageError` for a name nobody knows, naming the nearest known ones.

    `see` is the command that lists them all, shown when it is given.
    """
    names = list(known)
    close = nearest(str(given)[:_LONGEST], names)
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    elif len(names) <= 12:
        hint = f"known: {', '.join(names)}" if names else "there is none"
    else:
        hint = f"{len(names)} are known"
    if see:
        hint += f" (`{see}` lists them)"
    return UsageError(f"unknown {kind} {str(given)!r}; {hint}")
