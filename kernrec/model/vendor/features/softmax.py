"""Softmax of rows as PyTorch runs it."""

from collections.abc import Mapping

import numpy as np

from kernrec.model.vendor.bound import Bound, Card
from kernrec.model.vendor.features.rows import CASES, DIMS, rows_bound

__all__ = ["CASES", "DIMS", "bound"]


def bound(card: Card, sizes: Mapping[str, np.ndarray], layout: str) -> Bound:
    """The bound and the features: one tensor is read, one written."""
    return rows_bound(card, sizes["rows"], sizes["columns"], 2, 33e-6)
