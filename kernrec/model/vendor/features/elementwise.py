"""Bound and features of PyTorch's elementwise operators over two tensors."""

from collections.abc import Callable, Mapping

import numpy as np

from kernrec.model.vendor.bound import Bound, Card
from kernrec.model.vendor.features.rows import rows_bound

DIMS = ("n",)
CASES: Mapping[str, Callable[[Mapping[str, int]], bool]] = {"elements": lambda d: True}
"""Predicates on the dimensions of a problem, by name of a recorded case."""
_BLOCK = 1024
"""Elements of a thread block."""


def bound(card: Card, sizes: np.ndarray, layout: str) -> Bound:
    """Return the bound and the features of reading two tensors and writing one tensor."""
    (n,) = sizes
    return rows_bound(card, DIMS, sizes, np.ceil(n / _BLOCK), np.minimum(n, _BLOCK), 3, 26e-6)
