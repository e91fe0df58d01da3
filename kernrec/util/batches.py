"""Batches of what is fetched and checked: to start the process that checks takes longer than to check a little."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

BATCH_BYTES = 2**28
"""Of a pull: what was taken before it is interrupted stays."""

Item = TypeVar("Item")


def batches(items: Iterable[Item], size: Callable[[Item], int], most: int = BATCH_BYTES) -> Iterator[list[Item]]:
    """Items in order, in batches of so many bytes or of one."""
    batch: list[Item] = []
    filled = 0
    for item in items:
        more = size(item)
        if batch and filled + more > most:
            yield batch
            batch, filled = [], 0
        batch.append(item)
        filled += more
    if batch:
        yield batch
