"""Test that retraining between visits transfers the order of configs to unmeasured problems, where that helps."""

import numpy as np
import pytest

from kernrec.model.search.joint_posterior import Contenders, JointPosterior, Measured
from kernrec.model.search.refinement import Costs, Refinement
from kernrec.model.search.relearning import LEAST, Evidence, corrections
from tests.helpers.needs import needs

pytestmark = needs("xgboost")
CONFIGS = 8


def evidence(problem: int, error_of_input: float, measured: int = 4) -> Evidence:
    """Return a problem whose log costs are off by `error_of_input` times the first input, plus noise."""
    draw = np.random.default_rng(problem)
    inputs = draw.random((CONFIGS, 2))
    log_cost = error_of_input * inputs[:, 0] + 0.01 * draw.standard_normal(CONFIGS) + draw.normal()
    rows = draw.permutation(CONFIGS)[:measured]
    return Evidence(inputs, np.zeros(CONFIGS), rows, log_cost[rows])


def test_explainable_error_is_learned_for_unmeasured_problems():
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


def test_correction_leaves_out_the_problem_itself():
    problems = [evidence(number, 1.0) for number in range(60)]
    before = corrections(problems)
    wild = Evidence(problems[7].inputs, problems[7].expected, problems[7].rows, problems[7].log_cost * 3.0)
    after = corrections([*problems[:7], wild, *problems[8:]])
    assert before is not None
    assert after is not None
    first, second = before[0][7], after[0][7]
    np.testing.assert_allclose(first, np.abs(first).max() / np.abs(second).max() * second, atol=1e-6)


@pytest.mark.parametrize("problems", [60, LEAST // 4 - 1])
def test_random_errors_and_few_measurements_change_nothing(problems):
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


def test_retrained_refinement_chooses_better_on_unmeasured_problems():
    def lost(posterior: JointPosterior) -> float:
        choices = [evidence(number, 1.0).inputs[posterior.choice(number), 0] for number in range(40, 60)]
        best = [evidence(number, 1.0).inputs[:, 0].min() for number in range(40, 60)]
        return float(np.mean(np.subtract(choices, best)))

    assert lost(after_visits(inputs=True)) < 0.2 * lost(after_visits(inputs=False))


def test_resumed_run_recovers_what_the_first_learned():
    first = after_visits(inputs=True)
    again = JointPosterior([contenders(number, True) for number in range(60)])
    for number in range(60):
        for row in first.measured(number):
            again.add(number, row)
    Refinement(again, Costs(0.0, 1.0), 0.01)
    same = [again.choice(number) == first.choice(number) for number in range(60)]
    assert np.mean(same) > 0.8
