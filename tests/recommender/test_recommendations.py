"""Test recommendations with their costs, comparisons, and shared ranks of equally good configs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.recommender import Objective, Recommender
from kernrec.recommender.answer import build_recommendations
from kernrec.recommender.candidates import candidate_set
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.result import Place
from kernrec.store import Evidence
from kernrec.util.engine import query as engine


@pytest.fixture(scope="module")
def candidates():
    problem, gpu = find_op("matmul").problem(m=512, n=512, k=512), find_gpu("a100")
    points = [DEFAULT_POINT, OperatingPoint(200.0)]
    tables = Recommender([]).context.tables(problem, gpu)
    return candidate_set(tables, problem, points, Evidence(), whole_space=True)


def test_recommendation_at_a_lower_limit_is_compared_with_the_default(candidates):
    position = candidates.fastest
    (recommendation,) = build_recommendations(candidates, [(1, position)], Objective.ENERGY)
    latency, energy = candidates.latency_s[:, position], candidates.energy_j[:, position]
    assert recommendation.power_limit_w == 200.0
    assert recommendation.versus_fastest.slowdown == latency[1] / latency[0] - 1.0
    assert recommendation.versus_fastest.energy_saved == 1.0 - energy[1] / energy[0]


@pytest.mark.parametrize("pick", [(2, 0), (-1, 0), (0, -1), (0, 1 << 40)])
def test_picks_outside_the_candidates_are_refused(candidates, pick):
    with pytest.raises((ValueError, IndexError)):
        build_recommendations(candidates, [pick], Objective.LATENCY)


def test_predictions_have_an_approximate_rank(candidates):
    order = candidates.latency_s[0].argsort()[:3].tolist()
    recommendations = build_recommendations(candidates, [(0, position) for position in order], Objective.LATENCY)
    assert [str(recommendation.place) for recommendation in recommendations] == ["~1", "~2", "~3"]
    assert recommendations[0].latency_s.low < recommendations[0].latency_s.value < recommendations[0].latency_s.high


def places(intervals: list[tuple[float, float]], exact: list[bool]) -> list[Place]:
    return [Place(*rank) for rank in engine.ranks(intervals, exact)]


drawn_choices = st.lists(st.tuples(st.floats(1, 2), st.floats(0, 0.3), st.booleans()), max_size=12)


def shown(*drawn: tuple[float, float, bool]) -> list[str]:
    return [str(place) for place in places([(low, high) for low, high, _ in drawn], [exact for *_, exact in drawn])]


def test_tie_is_with_the_first_of_the_group():
    assert shown((1.0, 1.2, True), (1.1, 1.3, True), (1.25, 1.4, True), (2.0, 3.0, True)) == ["1=", "1=", "3", "4"]


@given(drawn_choices)
def test_ranks_begin_at_one_and_never_decrease_among_exact_ones(drawn):
    ordered = sorted(drawn)
    intervals = [(value - width, value + width) for value, width, _ in ordered]
    ranks = places(intervals, [exact for *_, exact in ordered])
    numbers = [place.number for place in ranks]
    assert not numbers or numbers[0] == 1
    exact = [place.number for place in ranks if place.exact]
    assert exact == sorted(exact)
    for number, place in enumerate(ranks, start=1):
        assert place.number <= number
        assert place.exact or place.number == number
        if place.number < number:
            assert place.ambiguous
            assert ranks[place.number - 1].ambiguous
