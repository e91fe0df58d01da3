"""Store arrays by name in a file for exchange with the limited process, without pickling."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_NAME = "array."
"""Prefix of each name, because `numpy.savez` has its own parameters, such as `file`."""


def save_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays of numbers to an .npz file."""
    named: dict[str, Any] = {_NAME + name: array for name, array in arrays.items()}
    np.savez(file, **named)


def load_arrays(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file that `save_arrays` wrote."""
    with np.load(file, allow_pickle=False) as content:
        return {name.removeprefix(_NAME): content[name] for name in content.files}
