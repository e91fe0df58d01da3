"""The regret of a network is that of its layers, weighted by what they cost."""

import pytest

from kernrec.recommender import Recommender
from kernrec.recommender.network import NetworkRequest, answer_network, shapes_as_network
from kernrec.recommender.network_regret import with_regrets
from kernrec.recommender.request import Objective, Query


def test_a_layer_counts_for_the_whole_as_much_as_it_costs() -> None:
    recommender = Recommender([])
    shapes = shapes_as_network("matmul", ["m=64,n=64,k=64", "m=4096,n=4096,k=4096"], "f16")
    answer = answer_network(recommender, "l4", NetworkRequest(shapes), Query(Objective.LATENCY))
    document = with_regrets(recommender, answer)
    small, large = (layer["regret"]["latency"] for layer in document["layers"])
    whole = document["regret"]["latency"]["expected"]
    costs = [regret["contenders"][0]["cost"] for regret in (small, large)]
    assert whole == pytest.approx((small["expected"] * costs[0] + large["expected"] * costs[1]) / sum(costs))
    assert abs(whole - large["expected"]) < abs(whole - small["expected"])


@pytest.mark.parametrize(("gpu", "dtype"), [("a100", "f16"), ("t4", "f32")])
def test_the_regret_of_an_answer_is_the_same_with_candidates_that_were_kept_and_with_new_ones(
    gpu: str, dtype: str
) -> None:
    recommender = Recommender([])
    answer = recommender.recommend("matmul", gpu, "m=4096,n=512,k=768", dtype)
    assert recommender.regrets(answer) == Recommender([]).regrets(answer)
