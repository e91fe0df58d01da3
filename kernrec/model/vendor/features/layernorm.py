"""Bound and features of PyTorch's layer normalization of rows."""

import numpy as np

from kernrec.model.vendor.bound import Bound, Card
from kernrec.model.vendor.features.rows import CASES, DIMS, rows_bound

__all__ = ["CASES", "DIMS", "bound"]


def bound(card: Card, sizes: np.ndarray, layout: str) -> Bound:
    """Return the bound and the features of reading one tensor and writing one tensor."""
    rows, columns = sizes
    return rows_bound(card, DIMS, sizes, rows, columns, 2, 46e-6)
