"""Elementary functions of the prior's arithmetic on arrays; `elementwise.pxd` has them for single numbers, compiled.

Like NumPy's, a NaN among the operands of `minimum` and `maximum` is their result.
"""

import numpy as np
from numpy.typing import ArrayLike

ceil, floor, sqrt = np.ceil, np.floor, np.sqrt
maximum, minimum = np.maximum, np.minimum
select = np.where


def some(condition: ArrayLike) -> bool:
    """Whether a condition is true of some element."""
    return bool(np.any(condition))
