"""Elementary functions of the prior's arithmetic on arrays; `elementwise.pxd` has them for single numbers, compiled.

Like NumPy's, a NaN among the operands of `minimum` and `maximum` is their result.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

ceil, floor, sqrt = np.ceil, np.floor, np.sqrt
maximum, minimum = np.maximum, np.minimum
select = np.where


def some(condition: ArrayLike) -> bool:
    """Whether a condition is true of some element."""
    return bool(np.any(condition))


def gathered(values: Sequence[Any], register: int, indexes: Sequence[np.ndarray], index: int, rows: np.ndarray) -> Any:
    """A register of a flat program for these rows of its space; a number where it is the same for all."""
    value = values[register]
    if value.__class__ is not np.ndarray:
        return value
    return value.take(rows if index < 0 else indexes[index].take(rows))


def twin(seen: Any, variants: Any, work: Any, launch: int) -> int:
    """The number of an earlier launch of the same variant and work; -1, for arrays hold all launches at once."""
    return -1
