"""Kinds of problems by what the compiler knows about the length of matrix rows. Each kind has its own intervals.

Unless a compiler knows that rows are whole vectors, it generates code that copies single elements and compares each
with the edge. The analytical model is less accurate for this code, and training data contains few such problems. A
kernel with separate code for unaligned rows has the tunable `unaligned`, whose value depends on the problem.
"""

from collections.abc import Mapping

import numpy as np

_TUNABLE = "unaligned"
ROW_KINDS = {0: "rows of 16 elements", 8: "rows of 16 bytes"}
"""Granularity of all rows, by value of the tunable `unaligned`."""
OTHER_ROWS = "other rows"


def row_kind(tunables: Mapping[str, np.ndarray], row: int = 0) -> str:
    """Return the kind stored in the tunable `unaligned` of config `row`; empty without this tunable or without configs.

    Args:
        tunables: Values of each tunable, (C,).
        row: Index of the config.
    """
    values = tunables.get(_TUNABLE)
    return "" if values is None or row >= len(values) else ROW_KINDS.get(int(values[row]), OTHER_ROWS)
