"""Test that refinement measures where it lowers the regret most, and that retraining helps unvisited problems."""

import math

import numpy as np
import pytest

from kernrec.model.search.joint_posterior import Contenders, JointPosterior, Measured
from kernrec.model.search.refinement import Costs, Refinement, Visit
from kernrec.model.search.relearning import LEAST, Evidence, corrections
from tests.helpers.needs import needs

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


def test_refinement_begins_with_uncertain_and_highly_weighted_problems():
    assert visit_of(refinement(problem(0.01), problem(0.3)).next()).problem == 1
    assert visit_of(refinement(problem(0.2), problem(0.2, weight=3.0)).next()).problem == 1


def test_expensive_setup_leads_to_more_configs_per_visit():
    short, long = (visit_of(refinement(problem(0.3), visit_s=seconds).next()) for seconds in (0.0, 20.0))
    assert len(long.contenders) > len(short.contenders)
    assert long.seconds == 20.0 + len(long.contenders)


def test_excluded_problems_are_skipped():
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


def test_problem_with_overlooked_configs_is_visited_once():
    """Ten problems are uncertain. The best config of the eleventh problem may be overlooked."""
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


CONFIGS = 8


def evidence(problem: int, error_of_input: float, measured: int = 4) -> Evidence:
    """Return a problem whose log costs are off by `error_of_input` times the first input, plus noise."""
    draw = np.random.default_rng(problem)
    inputs = draw.random((CONFIGS, 2))
    log_cost = error_of_input * inputs[:, 0] + 0.01 * draw.standard_normal(CONFIGS) + draw.normal()
    rows = draw.permutation(CONFIGS)[:measured]
    return Evidence(inputs, np.zeros(CONFIGS), rows, log_cost[rows])


@needs("xgboost")
def test_systematic_error_is_corrected_on_unmeasured_problems():
    problems = [evidence(number, 1.0, measured=4 if number < 60 else 0) for number in range(80)]
    learned = corrections(problems)
    assert learned is not None
    of_problems, left = learned
    assert left < 0.3
    agreement = [
        np.corrcoef(correction, problem.inputs[:, 0])[0, 1]
        for problem, correction in zip(problems[60:], of_problems[60:], strict=True)
    ]
    assert np.mean(agreement) > 0.9


@needs("xgboost")
def test_correction_of_a_problem_ignores_its_own_measurements():
    problems = [evidence(number, 1.0) for number in range(60)]
    before = corrections(problems)
    wild = Evidence(problems[7].inputs, problems[7].expected, problems[7].rows, problems[7].log_cost * 3.0)
    after = corrections([*problems[:7], wild, *problems[8:]])
    assert before is not None
    assert after is not None
    first, second = before[0][7], after[0][7]
    np.testing.assert_allclose(first, np.abs(first).max() / np.abs(second).max() * second, atol=1e-6)


@needs("xgboost")
@pytest.mark.parametrize("problems", [60, LEAST // 4 - 1])
def test_random_errors_or_few_measurements_give_no_correction(problems):
    explained = 0.0 if problems == 60 else 1.0
    assert corrections([evidence(number, explained) for number in range(problems)]) is None


def contenders(number: int, inputs: bool) -> Contenders:
    problem = evidence(number, 1.0)
    return Contenders(
        problem.expected, np.full(CONFIGS, 0.3), np.zeros((CONFIGS, 1)), problem.inputs, np.zeros(CONFIGS), 0.0,
        inputs=problem.inputs if inputs else None,
    )  # fmt: skip


def after_visits(inputs: bool) -> JointPosterior:
    posterior = JointPosterior([contenders(number, inputs) for number in range(60)])
    refinement = Refinement(posterior, Costs(0.0, 1.0), 0.01)
    for number in range(40):
        problem = evidence(number, 1.0)
        for row, log_cost in zip(problem.rows.tolist(), problem.log_cost.tolist(), strict=True):
            refinement.take(number, Measured(row, log_cost, 0.01))
    return posterior


@needs("xgboost")
def test_refinement_with_corrections_chooses_better_on_unmeasured_problems():
    def lost(posterior: JointPosterior) -> float:
        choices = [evidence(number, 1.0).inputs[posterior.choice(number), 0] for number in range(40, 60)]
        best = [evidence(number, 1.0).inputs[:, 0].min() for number in range(40, 60)]
        return float(np.mean(np.subtract(choices, best)))

    assert lost(after_visits(inputs=True)) < 0.2 * lost(after_visits(inputs=False))


@needs("xgboost")
def test_resumed_refinement_makes_the_same_choices():
    first = after_visits(inputs=True)
    again = JointPosterior([contenders(number, True) for number in range(60)])
    for number in range(60):
        for row in first.measured(number):
            again.add(number, row)
    Refinement(again, Costs(0.0, 1.0), 0.01)
    same = [again.choice(number) == first.choice(number) for number in range(60)]
    assert np.mean(same) > 0.8
