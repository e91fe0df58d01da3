"""The exceptions of kernrec, and the message for an unknown name, which suggests the nearest known ones.

The command line prints the message of a `KernrecError` on one line and exits with its `exit_status`; callers of the
library catch it like any other exception.
"""

from collections.abc import Iterable


class KernrecError(Exception):
    """kernrec could not do what it was asked for; the message is one line.

    It may quote a stranger's file: characters that a terminal would act on, and line ends, are escaped.
    """

    exit_status = 1

    def __init__(self, message: str = "") -> None:
        if not message.isprintable():
            message = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in message)
        super().__init__(message)


class UsageError(KernrecError):
    """The input cannot be used: an unknown name, an impossible value or the wrong kind of file."""

    exit_status = 2


class KernrecWarning(UserWarning):
    """Something that a program which goes on should know; the message is one line."""


def fold(name: str) -> str:
    """`name` without what people write in different ways: case, spaces and punctuation."""
    return "".join(c for c in name.lower() if c.isalnum())


def nearest(given: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names most similar to `given`, compared without case, spaces and punctuation.

    Names that begin with `given` come first, shortest first. Without any, the most similar names by `difflib` are
    taken; without any of those, the longest name that `given` begins with.

    Args:
        given: What the user typed.
        known: The names to choose from.
        count: The most names to return.
    """
    wanted = fold(given)
    folded: dict[str, str] = {}
    for name in known:
        folded.setdefault(fold(name), name)
    if wanted and (longer := sorted((name for name in folded if name.startswith(wanted)), key=len)):
        return [folded[name] for name in longer[:count]]
    similarity = {name: _similarity(wanted, name) for name in folded}
    best = max(similarity.values(), default=(0.0, False))
    if best[0] >= _LEAST_SIMILARITY:
        return [folded[name] for name, value in similarity.items() if value == best][:count]
    prefixes = [name for name in folded if len(name) >= _SHORTEST_PREFIX and wanted.startswith(name)]
    return [folded[max(prefixes, key=len)]] if prefixes else []


_LONGEST = 80
"""Letters of what was given that are compared."""
_SHORTEST_PREFIX = 3
"""Letters of a known name that what was given begins with: many words begin with `m`."""
_LEAST_SIMILARITY = 0.5
"""Half of the letters in common and in the same order, as `u7` and `u8`."""
_NEAR = 0.6
"""Similarity from which on the others need not be listed: `speed` has half of its letters in common with `edp`."""
_FEW = 12
"""Names that are all listed where none is near."""


def _similarity(wanted: str, name: str) -> tuple[float, bool]:
    """How similar two names are, from 0 to 1, and whether they have the same letters: two may be swapped."""
    from difflib import SequenceMatcher  # only when an error is made

    return SequenceMatcher(None, wanted, name, autojunk=False).ratio(), sorted(wanted) == sorted(name)


def _is_near(wanted: str, name: str) -> bool:
    first, second = fold(wanted), fold(name)
    begins = bool(first) and (first.startswith(second) or second.startswith(first))
    return begins or _similarity(first, second)[0] >= _NEAR


def unknown(kind: str, given: object, known: Iterable[str], see: str | None = None) -> UsageError:
    """A `UsageError` for an unknown name that suggests the nearest known ones.

    Args:
        kind: What the name should be of, such as `GPU`.
        given: What the user typed.
        known: The names to choose from.
        see: The command that lists all of them, if there is one.
    """
    names = list(known)
    wanted = str(given)[:_LONGEST]
    close = nearest(wanted, names)
    if close and (len(names) > _FEW or _is_near(wanted, close[0])):
        hint = f"did you mean {' or '.join(close)}?"
    elif len(names) <= _FEW:
        hint = f"known: {', '.join(names)}" if names else "there are none"
    else:
        hint = f"{len(names)} are known"
    if see:
        hint += f" (`{see}` lists them)"
    return UsageError(f"unknown {kind} {str(given)!r}; {hint}")
