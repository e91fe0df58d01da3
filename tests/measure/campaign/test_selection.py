import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.measure.campaign.selection import front_neighborhood, interleaved

COST = st.integers(1, 10_000).map(lambda microseconds: microseconds * 1e-6)
COSTS = st.lists(st.tuples(COST, COST), min_size=1, max_size=40)


@given(COSTS, st.integers(1, 8))
def test_finals_begin_with_configs_that_no_other_beats_in_both_costs(
    costs: list[tuple[float, float]], count: int
) -> None:
    latency, energy = zip(*costs, strict=True)
    chosen = front_neighborhood(latency, energy, count)
    assert len(chosen) == len(set(chosen)) <= count

    def beaten(i: int) -> bool:
        return any(t < latency[i] and e < energy[i] for t, e in costs)

    front = [i for i in range(len(costs)) if not beaten(i)]
    assert all(not beaten(i) for i in chosen[: len(front)])


def test_a_config_nearer_the_front_goes_before_one_farther_away() -> None:
    latency, energy = [1.0, 2.0, 1.05, 1.5, 3.0], [2.0, 1.0, 2.1, 2.9, 3.0]
    assert front_neighborhood(latency, energy, 4) == [0, 1, 2, 3]


def test_of_a_long_front_both_ends_are_kept() -> None:
    latency = np.linspace(1.0, 2.0, 20)
    chosen = front_neighborhood(latency.tolist(), (1.0 / latency).tolist(), 8)
    assert {0, 19} <= set(chosen)
    assert len(chosen) == 8


@pytest.mark.parametrize(("count", "rounds"), [(8, 4), (1, 4), (0, 4)])
def test_every_round_measures_every_final_once(count: int, rounds: int) -> None:
    order = interleaved(count, rounds, np.random.default_rng(0))
    for turn in range(rounds):
        assert sorted(order[turn * count : (turn + 1) * count]) == list(range(count))
