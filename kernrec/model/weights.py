"""Weights of the training loss: a config counts by how close it comes to the best of its problem.

Ranking the winners is the job, so the squared error of a row is weighted with

    w = (best / cost) ** SHARPNESS        best: least cost measured of the same problem, GPU and head

the form that Ansor (Zheng et al., OSDI 2020, section 5.2) and TVM's MetaSchedule (`xgb_model.py`) use with exponent 1,
where the cost model of arXiv 2411.18873 builds on them. Weights of a problem are scaled to a mean of 1, so that a
problem counts by its rows and not by how much its configs differ. SHARPNESS 0 is the unweighted loss;
`tools/evaluate_spaces.py` prints both.
"""

import numpy as np

SHARPNESS = 1.0


def loss_weights(cost: np.ndarray, problem: np.ndarray, sharpness: float = SHARPNESS) -> np.ndarray:
    """The weights (N,) of costs (N,) in the problems numbered `problem` (N,); NaN costs weigh nothing."""
    known = np.isfinite(cost)
    weights = np.zeros(len(cost))
    for number in np.unique(problem[known]):
        rows = np.flatnonzero(known & (problem == number))
        share = (cost[rows].min() / cost[rows]) ** sharpness
        weights[rows] = share / share.mean()
    return weights
