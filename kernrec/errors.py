"""The exceptions of kernrec, and the message for an unknown name, which suggests the nearest known ones.

The command line prints the message of a `KernrecError` on one line and exits with its `exit_status`; callers of the
library catch it like any other exception.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


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


class NoKernelError(KernrecError):
    """No kernel of the library runs a problem; a stack may."""


class NoSuchKernelError(UsageError, NoKernelError):
    """No kernel of the library implements an op in a data type and layout, on any problem."""


class KernrecWarning(UserWarning):
    """Something that a program which goes on should know; the message is one line."""


@contextmanager
def file_errors(path: object, done: str) -> Iterator[None]:
    """Turn an `OSError` into a `UsageError` of one line: `path` cannot be `done`, such as "written"."""
    try:
        yield
    except OSError as error:
        raise UsageError(cannot_be(done, path, error)) from None


def cannot_be(done: str, path: object, error: OSError) -> str:
    """The line that says that a file cannot be `done`, such as "read" or "written", and why."""
    if isinstance(error, FileNotFoundError):
        why = f"there is no such {'folder' if done in ('written', 'created') else 'file'}"
    else:
        why = (error.strerror or str(error)).lower()
    return f"{path} cannot be {done}: {why}"


def fold(name: str) -> str:
    """`name` without what people write in different ways: case, spaces and punctuation."""
    return "".join(filter(str.isalnum, name.lower()))


def nearest(typed: str, names: Iterable[str], count: int = 3) -> list[str]:
    """At most `count` of `names` that are most similar to `typed`, compared without case, spaces and punctuation.

    Names that begin with `typed` come first, shortest first. Without any, the most similar names by `difflib` are
    taken; without any of those, the longest name that `typed` begins with.
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
"""Letters of a typed name that are compared."""
_SHORTEST_PREFIX = 3
"""Letters of a name with which a typed one begins: many words begin with `m`."""
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


def unknown(kind: str, typed: object, choices: Iterable[str], see: str | None = None) -> UsageError:
    """A `UsageError` for a name that is no `kind` (such as "GPU"); it suggests the nearest of the choices.

    see: the command that lists all of them, if there is one.
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
