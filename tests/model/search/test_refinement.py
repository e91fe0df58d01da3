"""Test that refinement chooses the problem for which a measurement lowers the regret most per second."""

import math

import numpy as np

from kernrec.model.search.joint_posterior import Contenders, JointPosterior, Measured
from kernrec.model.search.refinement import Costs, Refinement, Visit

NOISE = 0.01


def problem(deviation: float, weight: float = 1.0, count: int = 5) -> Contenders:
    draw = np.random.default_rng(round(1000 * deviation))
    return Contenders(
        np.linspace(0.0, 0.2, count), np.full(count, deviation), np.zeros((count, 1)), draw.standard_normal((count, 2)),
        np.zeros(count, dtype=int), 0.0, weight,
    )  # fmt: skip


def refinement(*problems: Contenders, visit_s: float = 0.0) -> Refinement:
    return Refinement(JointPosterior(problems), Costs(visit_s, 1.0), NOISE)


def visit_of(chosen: Visit | None) -> Visit:
    assert chosen is not None
    return chosen


def test_uncertain_problem_comes_before_a_certain_one():
    assert visit_of(refinement(problem(0.01), problem(0.3)).next()).problem == 1


def test_heavier_of_equally_uncertain_problems_comes_first():
    assert visit_of(refinement(problem(0.2), problem(0.2, weight=3.0)).next()).problem == 1


def test_expensive_setup_measures_more_configs_per_visit():
    short, long = (visit_of(refinement(problem(0.3), visit_s=seconds).next()) for seconds in (0.0, 20.0))
    assert len(long.contenders) > len(short.contenders)
    assert long.seconds == 20.0 + len(long.contenders)


def test_problems_measured_by_others_are_skipped():
    policy = refinement(problem(0.01), problem(0.3))
    assert visit_of(policy.next(without={1})).problem == 0
    assert policy.next(without={0, 1}) is None


def test_refinement_lowers_the_regret_until_all_is_measured():
    policy, draw, regrets = refinement(problem(0.2), problem(0.1)), np.random.default_rng(0), []
    truth = [p.expected + p.deviation * draw.standard_normal(5) for p in (problem(0.2), problem(0.1))]
    while (visit := policy.next()) is not None:
        regrets.append(policy.posterior.mean_regret())
        for contender in visit.contenders:
            policy.take(visit.problem, Measured(contender, float(truth[visit.problem][contender]), NOISE))
    assert sum(len(policy.posterior.measured(number)) for number in range(2)) == 10
    assert regrets[-1] < 0.2 * regrets[0]
    assert [policy.posterior.choice(number) for number in range(2)] == [int(times.argmin()) for times in truth]


def test_gain_from_more_search_time_is_at_most_the_remaining_regret():
    policy = refinement(problem(0.2), problem(0.3), visit_s=1.0)
    bought = [policy.forecast(seconds) for seconds in (0.0, 1.0, 10.0, math.inf)]
    assert bought[0] == 0.0
    assert bought == sorted(bought)
    assert bought[-1] <= policy.posterior.mean_regret() + 0.01


def test_possibly_overlooked_problems_come_next_and_only_once():
    """Of eleven problems, ten are uncertain; the certain one would otherwise come last."""
    policy = refinement(problem(0.001, weight=0.5), *(problem(0.1 + 0.01 * number) for number in range(10)))
    visited = []
    while not policy.below(0.03):
        visit = visit_of(policy.next())
        visited.append(visit.problem)
        only_it = policy.posterior.regret_bound() - policy.posterior.overlooked() <= 0.03
        assert not only_it or policy.posterior.unsettled(visit.problem)
        expected = policy.posterior.contenders(visit.problem).expected
        policy.take(visit.problem, Measured(visit.contenders[0], float(expected[visit.contenders[0]]), NOISE))
    assert policy.posterior.regret_bound() <= 0.03
    assert policy.posterior.mean_regret() < 0.03
    assert len(policy.posterior.measured(0)) >= 1
