"""Test regrets: the joint posterior of many problems, its random draws, and the record of outcomes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.model.learn.adaptation import matern
from kernrec.model.search import joint_posterior
from kernrec.model.search.joint_posterior import Contenders, JointPosterior, Measured
from kernrec.model.search.regret_record import RegretRecord
from tests.helpers.depth import few_examples

NOISE = 0.01


def contenders(seed: int, count: int = 6, shared: bool = True, weight: float = 1.0) -> Contenders:
    draw = np.random.default_rng(seed)
    features = 0.1 * draw.standard_normal((count, 3)) if shared else np.zeros((count, 3))
    return Contenders(
        expected=draw.normal(0.0, 0.1, count), deviation=draw.uniform(0.05, 0.2, count), features=features,
        coordinates=draw.standard_normal((count, 2)), kernel=draw.integers(0, 2, count), of_kernel=0.1, weight=weight,
    )  # fmt: skip


def brute_force(
    problems: list[Contenders], scales: list[float], rows: list[tuple[int, Measured]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and covariance of all configs of all problems, computed with a single Gaussian process."""
    blocks, slopes = [], []
    for problem, scale in zip(problems, scales, strict=True):
        deviation = scale * problem.deviation
        own = joint_posterior.SMOOTH * matern(problem.coordinates, problem.coordinates, joint_posterior._LENGTH)
        own += (1.0 - joint_posterior.SHARED - joint_posterior.SMOOTH) * np.eye(len(deviation))
        kernel = (1.0 - joint_posterior.SHARED) * (scale * problem.of_kernel) ** 2
        kernel = kernel * (problem.kernel[:, None] == problem.kernel)
        blocks.append(np.outer(deviation, deviation) * own + kernel + joint_posterior._LEVEL**2)
        slopes.append(math.sqrt(joint_posterior.SHARED) * scale * problem.features)
    starts = np.cumsum([0, *(len(block) for block in blocks)])
    slope = np.vstack(slopes)
    prior = slope @ slope.T
    for start, block in zip(starts, blocks, strict=False):
        prior[start : start + len(block), start : start + len(block)] += block
    mean = np.concatenate([problem.expected for problem in problems])
    places = [int(starts[problem]) + row.contender for problem, row in rows]
    within = prior[np.ix_(places, places)] + np.diag([row.noise**2 for _, row in rows])
    gain = np.linalg.solve(within, prior[places]).T
    values = np.array([row.log_cost for _, row in rows])
    return mean + gain @ (values - mean[places]), prior - gain @ prior[places]


@few_examples(20)
@given(st.integers(0, 10**6), st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), min_size=1, max_size=6))
def test_estimates_equal_a_single_gaussian_process_over_all_problems(seed, measured):
    problems = [contenders(seed), contenders(seed + 1)]
    posterior = JointPosterior(problems)
    draw = np.random.default_rng(seed)
    rows = [(problem, Measured(which, float(draw.normal(0.0, 0.2)), NOISE)) for problem, which in measured]
    for problem, row in rows:
        posterior.add(problem, row)
    scales = [posterior._blocks[problem].scale for problem in range(2)]
    mean, covariance = brute_force(problems, scales, rows)
    for problem, part in enumerate((slice(0, 6), slice(6, 12))):
        believed = posterior.expectation(problem)
        np.testing.assert_allclose(believed[0], mean[part], atol=1e-6)
        np.testing.assert_allclose(believed[1], covariance[part, part], atol=1e-6)


def test_measurement_informs_other_problems_only_about_shared_features():
    for shared in (True, False):
        posterior = JointPosterior([contenders(0, shared=shared), contenders(1, shared=shared)])
        before = posterior.expectation(1)
        posterior.add(0, Measured(0, 0.0, NOISE))
        posterior.add(0, Measured(1, 0.5, NOISE))
        after = posterior.expectation(1)
        assert (np.abs(after[0] - before[0]).max() > 1e-6) == shared
        assert (np.trace(after[1]) < np.trace(before[1]) - 1e-9) == shared


def test_regret_bound_exceeds_the_mean_and_nears_it_with_more_problems():
    few, many = (JointPosterior([contenders(seed) for seed in range(count)]) for count in (2, 40))
    ratios = [posterior.regret_bound() / posterior.mean_regret() for posterior in (few, many)]
    assert ratios[0] > ratios[1] > 1.0


def test_regret_bound_allows_for_problems_measured_less_than_twice():
    problems = [contenders(seed, weight=weight) for seed, weight in ((1, 1.0), (2, 3.0))]
    posterior = JointPosterior(problems)
    margins = [posterior.overlooked()]
    for problem in (1, 0):
        for which in range(2):
            assert posterior.unsettled(problem)
            posterior.add(problem, Measured(which, 0.1 * which, NOISE))
        margins.append(posterior.overlooked())
    assert margins == pytest.approx([0.75 * math.log(2.0), 0.25 * math.log(2.0), 0.0])
    assert JointPosterior(problems).regret_bound() > margins[0]


def test_unmeasurable_problem_does_not_raise_the_bound():
    posterior = JointPosterior([contenders(6)])
    for which in range(6):
        posterior.exclude(0, which)
    assert not posterior.unsettled(0)
    assert posterior.overlooked() == 0.0


def test_fully_measured_problem_has_no_regret_and_no_gain():
    posterior = JointPosterior([contenders(3)])
    for which in range(6):
        posterior.add(0, Measured(which, 0.1 * which, 1e-4))
    assert posterior.choice(0) == 0
    assert posterior.regret(0) < 1e-3
    assert posterior.prospects(0)[1][0] == 1.0
    assert posterior.sequence(0, 4, NOISE) == []


def test_gain_grows_with_the_problem_weight():
    once, twice = (JointPosterior([contenders(4, weight=weight)]).sequence(0, 3, NOISE) for weight in (1.0, 2.0))
    assert [which for which, _ in once] == [which for which, _ in twice]
    assert 0.0 <= once[0][1] < once[1][1]
    np.testing.assert_allclose([gain for _, gain in twice], [2.0 * gain for _, gain in once])


def test_predicted_gain_of_a_measurement_equals_its_simulated_mean_gain():
    problem, draw = contenders(5, shared=False), np.random.default_rng(0)
    prior = JointPosterior([problem])
    (which, gain), *_ = prior.sequence(0, 1, NOISE)
    mean, covariance = prior.expectation(0)
    spread = math.sqrt(covariance[which, which] + NOISE**2)
    falls = []
    for z in draw.standard_t(joint_posterior.DEGREES, 400):
        posterior = JointPosterior([problem])
        posterior.add(0, Measured(which, float(mean[which] + spread * z), NOISE))
        falls.append(mean.min() - posterior.expectation(0)[0].min())
    assert gain == pytest.approx(np.mean(falls), abs=4.0 * np.std(falls) / 20.0)


def test_config_that_cannot_run_is_never_chosen_or_measured():
    posterior = JointPosterior([contenders(6)])
    best = posterior.choice(0)
    posterior.exclude(0, best)
    assert posterior.choice(0) != best
    assert posterior.prospects(0)[1][best] == 0.0
    assert best not in [which for which, _ in posterior.sequence(0, 6, NOISE)]
    for which in range(6):
        posterior.exclude(0, which)
    assert np.isfinite(posterior.regret(0))
    assert posterior.sequence(0, 6, NOISE) == []


PROBLEMS = 60


def record(factor: float, measurements: int, seed: int = 0) -> RegretRecord:
    """Record random losses that are on average `factor` times as large as the predicted losses of 1 to 3 %."""
    draw = np.random.default_rng(seed)
    regrets = RegretRecord()
    for stated in draw.uniform(0.01, 0.03, measurements).tolist():
        regrets.note(stated, 0.08 * draw.standard_gamma(draw.poisson(factor * stated / 0.08)))
    return regrets


def means(regrets: RegretRecord, stated: float, problems: int = PROBLEMS) -> np.ndarray:
    return regrets.mean_losses(np.full(problems, stated), np.zeros(problems), np.ones(problems), 0)


def test_regret_correction_is_one_without_observations():
    assert RegretRecord().factor == 1.0
    assert means(RegretRecord(), 0.02).mean() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("factor", [0.4, 1.0, 2.0])
def test_regret_correction_converges_to_actual_divided_by_predicted_loss(factor):
    factors = [record(factor, 400, seed).factor for seed in range(40)]
    assert np.mean(factors) == pytest.approx(factor, rel=0.3)


def test_regret_quantile_covers_95_percent_of_losses():
    held = []
    for seed in range(200):
        draw = np.random.default_rng(1000 + seed)
        truth = float(draw.gamma(4.0, 0.25))  # drawn from the assumed prior distribution
        lost = (0.08 * draw.standard_gamma(draw.poisson(truth * 0.01 / 0.08, PROBLEMS))).mean()
        held.append(lost <= np.quantile(means(record(truth, 60, seed), 0.01), 0.95))
    assert 0.9 <= np.mean(held) <= 0.995
