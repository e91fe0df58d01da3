"""Describe the differences between two JSON values: a line for each difference, with its path."""

import math
from collections.abc import Collection, Iterator
from typing import Any


def json_differences(
    before: Any,
    now: Any,
    relative: float = 0.0,
    shares: Collection[str] = (),
    path: str = "",
) -> Iterator[str]:
    """Return the differences between two values, in words.

    Args:
        relative: Maximum difference of equal numbers, as a fraction of the larger one; two NaN are equal.
        shares: Keys of numbers that are a ratio minus one, or one minus a ratio; the ratios are compared.
        path: Path of the values in the JSON document.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        yield from (f"{path}.{key} is gone" for key in before if key not in now)
        yield from (f"{path}.{key} is new" for key in now if key not in before)
        for key, old in before.items():
            if key in now:
                new = now[key]
                if key in shares and type(old) is type(new) is float and _equal(1.0 + old, 1.0 + new, relative):
                    continue
                yield from json_differences(old, new, relative, shares, f"{path}.{key}")
    elif isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            yield f"{path} has {len(before)} entries, now {len(now)}"
        for number, (old, new) in enumerate(zip(before, now, strict=False)):
            yield from json_differences(old, new, relative, shares, f"{path}[{number}]")
    elif not _equal(before, now, relative):
        yield f"{path} is {before!r}, now {now!r}"


def _equal(before: Any, now: Any, relative: float) -> bool:
    if type(before) in (int, float) and type(now) in (int, float):
        return before == now or math.isclose(before, now, rel_tol=relative) or (before != before and now != now)
    return type(before) is type(now) and bool(before == now)
