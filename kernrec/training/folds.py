"""Cross-validation splits that hold out whole groups, never single rows of a group."""

from collections.abc import Iterator

import numpy as np

from kernrec.util.optional import import_optional


def group_folds(groups: np.ndarray, folds: int, seed: int = 0) -> np.ndarray:
    """Assign groups to folds at random.

    Args:
        groups: Group of each row, (N,).
        folds: Number of folds. With fewer groups, each group is a fold.
        seed: Seed of the random assignment.

    Returns:
        The fold of each row, (N,), counted from 0. Rows of a group share a fold; a single group gives zeros.
    """
    fold_of_row = np.zeros(len(groups), dtype=np.int64)
    folds = min(folds, len(np.unique(groups)))
    if folds < 2:
        return fold_of_row
    selection = import_optional("sklearn.model_selection", "training a model", "train")
    splitter = selection.GroupKFold(folds, shuffle=True, random_state=seed)
    for fold, (_, held_out) in enumerate(splitter.split(groups, groups=groups)):
        fold_of_row[held_out] = fold
    return fold_of_row


def each_fold(fold: np.ndarray) -> Iterator[np.ndarray]:
    """Yield, for each fold, a mask of its rows, (N,).

    Args:
        fold: Fold of each row, from `group_folds`.
    """
    for number in range(int(fold.max()) + 1):
        yield fold == number
