"""Test the parts of the analytical model's error, and the intervals made from them."""

import math

import pytest

from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.model.analytical.spread import INTERVAL, SPREAD
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.candidates import candidate_set
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.recommender.estimate.space import Space
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Stack


def test_interval_of_a_time_ratio_combines_the_errors_of_both_configs():
    assert 1.0 < SPREAD.ratio < SPREAD.time < INTERVAL
    assert 1.0 < SPREAD.energy < INTERVAL
    assert 1.0 < SPREAD.energy_ratio < INTERVAL
    assert math.hypot(SPREAD.own, SPREAD.own) == pytest.approx(math.log(SPREAD.ratio))
    assert math.hypot(SPREAD.own_energy, SPREAD.own_energy) == pytest.approx(math.log(SPREAD.energy_ratio))
    assert math.exp(SPREAD.own) < SPREAD.time
    assert math.exp(SPREAD.own_energy) < SPREAD.energy


def test_interval_of_a_prediction_is_as_wide_as_the_models_typical_error():
    kernel, gpu = find_kernel("matmul_simt"), find_gpu("a100")
    problem = kernel.definition.problem("f32", "nn", m=2048, n=2048, k=64)
    table = StaticTable.of(kernel, problem, gpu, Stack([]).profiles(kernel.name, kernel.hash, gpu.sm))
    candidates = candidate_set(Space([table], whole=True), problem, [DEFAULT_POINT])
    (of_kernel,), costs = candidates.kernels, candidates.costs.at(0)
    limited = of_kernel.limited.at(0)
    assert costs.kinds.shape == (2, 4, 1)  # Intervals do not depend on the bottleneck.
    for estimates, value, name in (
        (costs.latency, limited.latency_s, "time"), (costs.energy, limited.energy_j, "energy")
    ):  # fmt: skip
        factor = getattr(SPREAD, name)
        assert estimates.high == pytest.approx(value * factor)
        assert (estimates.low >= value / factor * (1.0 - 1e-9)).all()
        assert estimates.half_width == pytest.approx(math.log(factor))
    assert costs.energy.own == pytest.approx(SPREAD.own_energy)


def test_answer_states_time_and_energy_intervals():
    answer = Recommender([]).recommend("matvec", "a100", {"m": 4096, "k": 4096}, "f32", query=Query(Objective.LATENCY))
    best = answer.best.as_dict()
    for cost, unit in (("latency", "s"), ("energy", "j")):
        whole, own = best[f"{cost}_interval_{unit}"], best[f"{cost}_own_interval_{unit}"]
        assert whole[0] < own[0] < best[f"{cost}_{unit}"] < own[1] < whole[1]
