"""Weights of the training loss: a config counts by how close it comes to the best of its problem.

Ranking the winners is the job, so the squared error of a row is weighted with

    w = (best / cost) ** SHARPNESS        best: least cost measured of the same problem, GPU and head

the form that Ansor (Zheng et al., OSDI 2020, section 5.2) and TVM's MetaSchedule (`xgb_model.py`) use with exponent 1.
arXiv 2411.18873, whose energy model builds on them, says that its loss is weighted; its formula was not at hand when
this was written, and none is claimed to be it. Weights of a problem are scaled to a mean of 1, so that a problem counts
by its rows and not by how much its configs differ. SHARPNESS 0 is the unweighted loss; `tools/evaluate_spaces.py`
prints 0, 0.5, 1 and 2. From one recorded GPU to the other they rank alike (0.93 on the A100, 0.95 on the RTX A4000);
against 0, exponent 1 saves more of the A100's space (87 % against 84 %) and errs half as much on the A4000 (7 % against
15 %), but a little more on the A100 (13 % against 12 %). 2 is no clear gain over 1.
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
