"""Store named arrays in a file, without pickling, to exchange them with the limited process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_NAME = "array."
"""Prefix of each name, because names could equal parameters of `numpy.savez`, such as `file`."""


def save_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays of numbers to an .npz file."""
    named: dict[str, Any] = {_NAME + name: array for name, array in arrays.items()}
    np.savez(file, **named)


def load_arrays(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file that `save_arrays` wrote."""
    with np.load(file, allow_pickle=False) as content:
        return {name.removeprefix(_NAME): content[name] for name in content.files}
