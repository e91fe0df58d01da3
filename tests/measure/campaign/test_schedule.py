"""What is left to measure of a problem follows from what was measured of it."""

from collections import Counter

import numpy as np
import pytest

from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.measure.campaign.results import ProblemHistory
from kernrec.measure.campaign.schedule import Schedule
from kernrec.measure.protocol import measure_config
from kernrec.op import find_op
from kernrec.store.measurement import Measurement

PROBLEM = find_op("reduce").problem(rows=8, columns=256)
TASKS = tuple(Task("own", "hash", {"unroll": unroll}, PROBLEM) for unroll in range(20))


def screened(*, energy: bool) -> Schedule:
    """A target whose configs were all screened: the later the slower, and the more frugal."""
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
def test_where_nothing_tells_of_energy_the_fastest_are_measured_with_care(with_energy: bool) -> None:
    finals = Counter(item.task.config["unroll"] for item in screened(energy=False).finals(4, with_energy=with_energy))
    assert set(finals) == {0, 1, 2, 3}
    assert set(finals.values()) == {measure_config.FINAL_ROUNDS}


def test_the_most_frugal_are_measured_with_care_too() -> None:
    finals = {item.task.config["unroll"] for item in screened(energy=True).finals(4, with_energy=True)}
    assert {0, 19} <= finals
