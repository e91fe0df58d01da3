"""Layer normalization of rows as PyTorch runs it."""

import numpy as np

from kernrec.model.vendor.bound import Bound, Card
from kernrec.model.vendor.features.rows import CASES, DIMS, rows_bound

__all__ = ["CASES", "DIMS", "bound"]


def bound(card: Card, sizes: np.ndarray, layout: str) -> Bound:
    """Return the bound and the features: one tensor is read, one written."""
    rows, columns = sizes
    return rows_bound(card, DIMS, sizes, rows, columns, 2, 46e-6)
