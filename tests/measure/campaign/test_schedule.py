"""Test that the schedule of a problem follows from its earlier measurements."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.measure.campaign.results import ProblemHistory
from kernrec.measure.campaign.schedule import Schedule, front_neighborhood, interleaved
from kernrec.measure.protocol import measure_config
from kernrec.op import find_op
from kernrec.store.measurement import Measurement

PROBLEM = find_op("reduce").problem(rows=8, columns=256)
TASKS = tuple(Task("own", "hash", {"unroll": unroll}, PROBLEM) for unroll in range(20))


def screened(*, energy: bool) -> Schedule:
    """Return the schedule of a target with screened configs; later configs are slower but use less energy."""
    history = ProblemHistory()
    for number, task in enumerate(TASKS):
        row = {
            "gpu": "h200-sxm", "kernel": task.kernel_name, "kernel_hash": task.kernel_hash, "config": task.config,
            "problem": PROBLEM, "protocol_version": 1, "measured_at": "2026-01-01", "tier": "screen",
            "session": "first", "outcome": "ok", "latency_s": 1e-3 * (1 + number),
        }  # fmt: skip
        history.add(Measurement.from_columns(row | ({"energy_j": 1.0 / (1 + number)} if energy else {})))
    return Schedule(PlannedProblem("reduce", PROBLEM, TASKS), history, np.random.default_rng(0))


@pytest.mark.parametrize("with_energy", [True, False])
def test_fastest_configs_are_refined_without_energy_data(with_energy: bool) -> None:
    finals = Counter(item.task.config["unroll"] for item in screened(energy=False).finals(4, with_energy=with_energy))
    assert set(finals) == {0, 1, 2, 3}
    assert set(finals.values()) == {measure_config.FINAL_ROUNDS}


COST = st.integers(1, 10_000).map(lambda microseconds: microseconds * 1e-6)
COSTS = st.lists(st.tuples(COST, COST), min_size=1, max_size=40)


@given(COSTS, st.integers(1, 8))
def test_finals_begin_with_undominated_configs(costs: list[tuple[float, float]], count: int) -> None:
    latency, energy = zip(*costs, strict=True)
    chosen = front_neighborhood(latency, energy, count)
    assert len(chosen) == len(set(chosen)) <= count

    def beaten(i: int) -> bool:
        return any(t < latency[i] and e < energy[i] for t, e in costs)

    front = [i for i in range(len(costs)) if not beaten(i)]
    assert all(not beaten(i) for i in chosen[: len(front)])


@pytest.mark.parametrize(("count", "rounds"), [(8, 4), (1, 4), (0, 4)])
def test_every_round_measures_every_final_once(count: int, rounds: int) -> None:
    order = interleaved(count, rounds, np.random.default_rng(0))
    for turn in range(rounds):
        assert sorted(order[turn * count : (turn + 1) * count]) == list(range(count))
