"""Weights of the training loss: configs near the lowest cost for their problem count most.

A recommendation must rank the best configs correctly, so the squared error of a row is weighted with

    w = (best / cost) ** SHARPNESS

where `best` is the lowest cost that was measured for the same problem, GPU and quantity (latency or power). Ansor
(Zheng et al., OSDI 2020, section 5.2) and TVM's MetaSchedule (`xgb_model.py`) use this formula with exponent 1. The
weights of each problem's rows have a mean of 1.

The exponents 0 (no weights), 0.5, 1 and 2 were compared on one recorded search space and two GPUs. All have the same
rank correlation, and 1 has lower median errors than 0. There is too little data to prefer 2.
"""

import numpy as np

SHARPNESS = 1.0


def loss_weights(
    cost: np.ndarray, problem: np.ndarray, sharpness: float = SHARPNESS, trust: np.ndarray | None = None
) -> np.ndarray:
    """Return the weight of each training row.

    Args:
        cost: Measured cost of each row. Rows whose cost is NaN get weight 0.
        problem: Number of each row's problem.
        sharpness: Exponent of the weights.
        trust: Additional relative weight of each row, or None. Only rows with the largest `trust` of a problem
            determine its best cost.
    """
    measured = np.isfinite(cost)
    weights = np.zeros(len(cost))
    for number in np.unique(problem[measured]):
        rows = np.flatnonzero(measured & (problem == number))
        counts = np.ones(len(rows)) if trust is None else trust[rows]
        best = cost[rows][counts == counts.max()].min()
        share = np.minimum(best / cost[rows], 1.0) ** sharpness * counts
        weights[rows] = share / share.mean()
    return weights
