"""Define kernrec's exceptions, and error messages for unknown names, which suggest similar names."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class KernrecError(Exception):
    """kernrec could not complete a request. The message never contains control characters or line ends."""

    exit_status = 1

    def __init__(self, message: str = "") -> None:
        if not message.isprintable():
            message = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in message)
        super().__init__(message)


class UsageError(KernrecError):
    """The input is unusable: an unknown name, an impossible value or the wrong kind of file."""

    exit_status = 2


class NoKernelError(KernrecError):
    """No kernel of the library can run a problem. A backend may still be able to run it."""


class NoSuchKernelError(UsageError, NoKernelError):
    """No kernel of the library implements the op in the requested data type and layout."""


class KernrecWarning(UserWarning):
    """A problem that does not stop the program. The message is one line."""


@contextmanager
def file_errors(path: object, done: str) -> Iterator[None]:
    """Turn an `OSError` in the `with` block into a `UsageError` with the message "{path} cannot be {done}: ..."."""
    try:
        yield
    except OSError as error:
        raise UsageError(cannot_be(done, path, error)) from None


def cannot_be(done: str, path: object, error: OSError) -> str:
    """Return the message "{path} cannot be {done}: {reason}", where `done` is "read" or "written"."""
    if isinstance(error, FileNotFoundError):
        why = f"there is no such {'folder' if done in ('written', 'created') else 'file'}"
    else:
        why = (error.strerror or str(error)).lower()
    return f"{path} cannot be {done}: {why}"


def fold(name: str) -> str:
    """Return `name` in lower case, without spaces and punctuation."""
    return "".join(filter(str.isalnum, name.lower()))


def nearest(typed: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return at most `count` names that are most similar to `typed`, ignoring case, spaces and punctuation.

    The first of these rules that finds any names applies:
        1. names that begin with `typed`, shortest first
        2. names that `difflib` rates as similar, most similar first
        3. the longest name that is a prefix of `typed`
    """
    wanted = fold(typed)
    folded: dict[str, str] = {}
    for name in names:
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
"""Maximum number of characters of a typed name to compare with known names."""
_SHORTEST_PREFIX = 3
"""Minimum length of a typed prefix for a suggestion. Too many names begin with a shorter text."""
_LEAST_SIMILARITY = 0.5
"""Minimum `difflib` ratio of a suggestion. Half of the letters match in order, as in `u7` and `u8`."""
_NEAR = 0.6
"""Minimum `difflib` ratio at which the message shows a suggestion instead of the list of all names."""
_FEW = 16
"""Maximum number of names to list in full if no name is similar to the typed name."""


def _similarity(wanted: str, name: str) -> tuple[float, bool]:
    from difflib import SequenceMatcher  # Only error messages need difflib.

    return SequenceMatcher(None, wanted, name, autojunk=False).ratio(), sorted(wanted) == sorted(name)


def _is_near(wanted: str, name: str) -> bool:
    first, second = fold(wanted), fold(name)
    begins = bool(first) and (first.startswith(second) or second.startswith(first))
    return begins or _similarity(first, second)[0] >= _NEAR


def unknown(kind: str, typed: object, choices: Iterable[str], see: str | None = None) -> UsageError:
    """Return a `UsageError` about an unknown name, which suggests similar names.

    Args:
        kind: kind of thing that has a name, such as "GPU".
        see: command that lists all names.
    """
    names = list(choices)
    wanted = str(typed)[:_LONGEST]
    close = nearest(wanted, names)
    if close and (len(names) > _FEW or _is_near(wanted, close[0])):
        hint = f"did you mean {' or '.join(close)}?"
    elif len(names) <= _FEW:
        hint = f"known: {', '.join(names)}" if names else "there are none"
    else:
        hint = f"{len(names)} are known"
    if see:
        hint += f" (`{see}` lists them)"
    return UsageError(f"unknown {kind} {str(typed)!r}; {hint}")
