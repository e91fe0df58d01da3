"""Kinds of problems by what a compiler knows of the rows of their matrices, which intervals are told apart by.

Where a compiler does not know that rows are whole vectors it makes other code, which copies single elements and
compares each with the edge. The prior is off by more there, and a model has learned from few such problems. A kernel
with code of its own for them has the tunable `unaligned`, whose value follows from the problem.
"""

from collections.abc import Mapping

import numpy as np

_TUNABLE = "unaligned"
ROW_KINDS = {0: "rows of 16 elements", 8: "rows of 16 bytes"}
"""By value of that tunable: what all rows are multiples of."""
OTHER_ROWS = "other rows"


def row_kind(tunables: Mapping[str, np.ndarray], row: int = 0) -> str:
    """The kind of the problem that a config belongs to; empty for a kernel without that tunable, or without configs.

    Args:
        tunables: the values of each tunable, (C,).
        row: the config.
    """
    values = tunables.get(_TUNABLE)
    return "" if values is None or row >= len(values) else ROW_KINDS.get(int(values[row]), OTHER_ROWS)
