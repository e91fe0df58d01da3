"""Elementwise operators over two tensors as PyTorch runs them."""

from collections.abc import Callable, Mapping

import numpy as np

from kernrec.model.vendor.bound import Bound, Card
from kernrec.model.vendor.features.rows import rows_bound

DIMS = ("n",)
CASES: Mapping[str, Callable[[Mapping[str, int]], bool]] = {"elements": lambda d: True}
"""Whether the dimensions of a problem are of a case."""
_BLOCK = 1024
"""Elements of a block of threads."""


def bound(card: Card, sizes: np.ndarray, layout: str) -> Bound:
    """The bound and the features: two tensors are read, one written."""
    (n,) = sizes
    return rows_bound(card, DIMS, sizes, np.ceil(n / _BLOCK), np.minimum(n, _BLOCK), 3, 26e-6)
