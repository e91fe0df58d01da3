"""A choice says what its candidate costs, and what it is compared with."""

import pytest

from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.recommender import Objective, Recommender
from kernrec.recommender.candidate_set import CandidateSet, candidate_set
from kernrec.recommender.choices import build_choice, build_choices
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.store import Evidence


@pytest.fixture(scope="module")
def candidates() -> CandidateSet:
    problem, gpu = find_op("matmul").problem(m=512, n=512, k=512), find_gpu("a100")
    points = [DEFAULT_POINT, OperatingPoint(200.0)]
    tables = Recommender([]).context.tables(problem, gpu)
    return candidate_set(tables, problem, points, Evidence(), whole_space=True)


def test_the_fastest_is_compared_with_itself(candidates: CandidateSet) -> None:
    choice = build_choice(candidates, 0, candidates.fastest)
    assert (choice.versus_fastest.slowdown, choice.versus_fastest.energy_saved) == (0.0, 0.0)
    assert choice.latency_s.value == candidates.latency_s[0].min()


def test_a_choice_at_a_lower_limit_is_compared_with_the_default_one(candidates: CandidateSet) -> None:
    position = candidates.fastest
    (choice,) = build_choices(candidates, [(1, position)], Objective.ENERGY)
    latency, energy = candidates.latency_s[:, position], candidates.energy_j[:, position]
    assert choice.power_limit_w == 200.0
    assert choice.versus_fastest.slowdown == latency[1] / latency[0] - 1.0
    assert choice.versus_fastest.energy_saved == 1.0 - energy[1] / energy[0]


def test_predictions_have_an_approximate_place(candidates: CandidateSet) -> None:
    order = candidates.latency_s[0].argsort()[:3].tolist()
    choices = build_choices(candidates, [(0, position) for position in order], Objective.LATENCY)
    assert [str(choice.place) for choice in choices] == ["~1", "~2", "~3"]
    assert choices[0].latency_s.low < choices[0].latency_s.value < choices[0].latency_s.high
