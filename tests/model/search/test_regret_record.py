"""Test that observed outcomes of stated regrets correct the remaining regrets and bound the possible loss."""

import numpy as np
import pytest

from kernrec.model.search.regret_record import RegretRecord

PROBLEMS = 60


def record(factor: float, measurements: int, seed: int = 0) -> RegretRecord:
    """Record stated regrets of 1 to 3 %, when losses are `factor` times as likely as stated."""
    draw = np.random.default_rng(seed)
    regrets = RegretRecord()
    for stated in draw.uniform(0.01, 0.03, measurements).tolist():
        regrets.note(stated, 0.08 * draw.standard_gamma(draw.poisson(factor * stated / 0.08)))
    return regrets


def means(regrets: RegretRecord, stated: float, problems: int = PROBLEMS) -> np.ndarray:
    return regrets.mean_losses(np.full(problems, stated), np.zeros(problems), np.ones(problems), 0)


def test_first_regrets_are_not_corrected():
    assert RegretRecord().factor == 1.0
    assert means(RegretRecord(), 0.02).mean() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("factor", [0.4, 1.0, 2.0])
def test_factor_converges_to_the_ratio_of_actual_to_stated_losses(factor):
    factors = [record(factor, 400, seed).factor for seed in range(40)]
    assert np.mean(factors) == pytest.approx(factor, rel=0.3)


def test_losses_are_below_the_95_percent_quantile_in_95_of_100_cases():
    held = []
    for seed in range(200):
        draw = np.random.default_rng(1000 + seed)
        truth = float(draw.gamma(4.0, 0.25))  # drawn from the assumed prior distribution
        lost = (0.08 * draw.standard_gamma(draw.poisson(truth * 0.01 / 0.08, PROBLEMS))).mean()
        held.append(lost <= np.quantile(means(record(truth, 60, seed), 0.01), 0.95))
    assert 0.9 <= np.mean(held) <= 0.995
