"""Weights of the training loss: a config counts more the closer it is to the best of its problem.

A recommendation must rank the best configs correctly, so the squared error of a row is weighted with

    w = (best / cost) ** SHARPNESS        best: least cost measured of the same problem, GPU and head

Ansor (Zheng et al., OSDI 2020, section 5.2) and TVM's MetaSchedule (`xgb_model.py`) use this form with exponent 1.
The energy model of arXiv 2411.18873 builds on them and also uses a weighted loss, possibly with another formula.
The weights of a problem have a mean of 1. So the influence of a problem depends on its rows, not on how much its
configs differ.

SHARPNESS 0 is the unweighted loss. Exponents 0, 0.5, 1 and 2 were compared on one recorded space and two GPUs. All have
the same rank correlation, and 1 has lower median errors than 0. That is too little data to prefer 2.
"""

import numpy as np

SHARPNESS = 1.0


def loss_weights(
    cost: np.ndarray, problem: np.ndarray, sharpness: float = SHARPNESS, trust: np.ndarray | None = None
) -> np.ndarray:
    """Return the weight of each row, (N,).

    Args:
        cost: Measured cost of each row, (N,). Rows with NaN have weight 0.
        problem: Number of each row's problem, (N,).
        sharpness: The exponent.
        trust: Relative weight of each row, (N,); None for equal weights. Only rows of full weight can be the best.
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
