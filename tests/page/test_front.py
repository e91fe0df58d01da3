"""Test that the page's points and Pareto front equal the recommender's."""

import math

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.page.front import Subject, front_answer
from kernrec.recommender import Query
from kernrec.recommender.request import op_points

PROBLEM = find_op("matmul").problem("f32", None, m=256, n=512, k=256)
GPU = find_gpu("rtx4090")


def test_every_candidate_at_every_operating_point_is_a_point(recommender):
    front = front_answer(recommender, Subject(PROBLEM, clocks=True), GPU)
    candidates = recommender.candidates(PROBLEM, GPU, op_points(GPU, Query(clocks=True)))
    assert len(front["points"]["latency_s"]) == int(np.isfinite(candidates.latency_s).sum())
    assert {len(column) for column in front["points"].values()} == {len(front["points"]["latency_s"])}
    assert math.isclose(min(front["points"]["latency_s"]), float(candidates.latency_s.min()), rel_tol=1e-4)
    assert sum(point["default"] for point in front["operating_points"]) == 1


def test_front_is_undominated_and_sorted_by_latency(recommender):
    front = front_answer(recommender, Subject(PROBLEM), GPU)
    latency, energy = front["points"]["latency_s"], front["points"]["energy_j"]
    for number in front["front"]:
        beaten = [
            other
            for other in range(len(latency))
            if latency[other] < latency[number] * (1 - 1e-4) and energy[other] < energy[number] * (1 - 1e-4)
        ]
        assert not beaten
    assert [latency[n] for n in front["front"]] == sorted(latency[n] for n in front["front"])


def test_ends_of_the_front_equal_the_top_recommendations(recommender):
    front = front_answer(recommender, Subject(PROBLEM), GPU)
    recommendations = recommender.answer_problem(PROBLEM, GPU, Query(top=2)).recommendations
    points, ends = front["points"], (front["front"][0], front["front"][-1])
    for recommendation, number in zip(recommendations, ends, strict=True):
        configs = front["configs"][points["kernel"][number]]
        assert list(recommendation.config.values()) == configs["values"][points["config"][number]]
        assert front["operating_points"][points["point"][number]]["power_limit_w"] == recommendation.power_limit_w
        assert math.isclose(points["latency_high_s"][number], recommendation.latency_s.high, rel_tol=1e-4)


def test_limit_on_points_keeps_the_front_and_reports_dropped_points(recommender):
    whole = front_answer(recommender, Subject(PROBLEM), GPU)
    few = front_answer(recommender, Subject(PROBLEM), GPU, most=50)

    def on_front(answer: dict) -> list[tuple[float, float]]:
        return [(answer["points"]["latency_s"][n], answer["points"]["energy_j"][n]) for n in answer["front"]]

    assert len(few["points"]["latency_s"]) == 50
    assert on_front(few) == on_front(whole)
    left_out = len(whole["points"]["latency_s"]) - 50
    assert any(note.startswith(f"{left_out} of ") for note in few["notes"])
