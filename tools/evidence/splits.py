"""Split cases or problems into training and test sets."""

from collections.abc import Iterator
from hashlib import sha256

import numpy as np

from evidence.cases import Array, Cases


def held_out(cases: Cases, column: str) -> Iterator[tuple[str, Array]]:
    """Yield each value of a column, such as `kernel` or `gpu`, with a mask (N,) of the rows to hold out."""
    values = cases.column(column)
    for value in dict.fromkeys(values.tolist()):
        yield value, np.asarray(values == value)


def half(text: str) -> bool:
    """Return whether a name belongs to the first of two halves of all names."""
    return sha256(text.encode()).digest()[-1] % 2 == 0


def ordered(names: list[str]) -> list[int]:
    """Return an order of names that depends only on the names, so that the first N are a random sample."""
    digests = [sha256(name.encode()).digest() for name in names]
    return sorted(range(len(digests)), key=digests.__getitem__)
