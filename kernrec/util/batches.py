"""Group items into batches, because starting a checking process takes longer than checking a few items."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

BATCH_BYTES = 2**28
"""Bytes per batch of a pull; complete batches survive an interruption."""

Item = TypeVar("Item")


def batches(items: Iterable[Item], size: Callable[[Item], int], most: int = BATCH_BYTES) -> Iterator[list[Item]]:
    """Yield items in order, in batches of at most `most` bytes (or of one larger item)."""
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
