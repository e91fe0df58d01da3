"""Test static tables, and costs that combine predictions and measurements."""

from datetime import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.recommender import Recommender
from kernrec.recommender.estimate.costs import MEASURED, PREDICTED, Costs, kinds_of, with_measured
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.recommender.estimate.prediction import SHORTLIST, Space, SpaceCosts, predict
from kernrec.store import MeasuredAnswer

COUNT = 8
OWN_WIDTH = 0.3
"""Logarithmic half-width of the error that each config has independently, within the total factor of two."""


def predicted() -> Costs:
    latency = np.linspace(1e-3, 2e-3, COUNT)
    energy = latency * 200.0
    kinds = np.stack([kinds_of(2.0, 2.0, PREDICTED, np.full(COUNT, OWN_WIDTH))] * 2)
    return Costs(np.stack([latency, energy, energy / latency]), np.stack([np.arange(COUNT)] * 2), kinds)


def measured(latency_s: float, energy_j: float | None, **bounds: float) -> MeasuredAnswer:
    return MeasuredAnswer(
        "k", "h", {}, latency_s, energy_j, None, 1, 1, datetime(2026, 1, 1), None, None, None, **bounds
    )


def test_empty_measurements_change_nothing():
    before = predicted()
    assert with_measured(before, np.array([], dtype=int), []) == (before, None)


factors = st.lists(st.tuples(st.floats(0.2, 5), st.none() | st.floats(0.5, 2)), min_size=1, max_size=COUNT - 1)


@given(factors)
def test_measured_costs_are_kept_and_the_others_keep_their_order(drawn):
    before, positions = predicted(), np.arange(len(drawn))
    rows = [
        measured(before.latency.value[i] * t, None if p is None else before.energy.value[i] * t * p)
        for i, (t, p) in enumerate(drawn)
    ]
    after, scale = with_measured(before, positions, rows)
    assert scale is not None
    assert scale.configs == len(rows)
    for i, row in enumerate(rows):
        assert after.latency.value[i] == row.latency_s
        assert after.latency.source[i] == MEASURED
        assert after.energy.source[i] == (PREDICTED if row.energy_j is None else MEASURED)
        if row.energy_j is not None:
            assert after.energy.value[i] == row.energy_j
            assert after.power_w[i] == pytest.approx(row.energy_j / row.latency_s)
    rest = slice(len(rows), None)
    assert (np.diff(after.latency.value[rest]) > 0).all()
    assert after.latency.value[rest] == pytest.approx(before.latency.value[rest] * scale.latency)
    assert after.energy.value[rest] == pytest.approx(before.energy.value[rest] * scale.latency * scale.power)
    assert (after.latency.source[rest] == PREDICTED).all()
    assert (after.latency.low < after.latency.value).all()
    assert (after.latency.value < after.latency.high).all()
    assert (after.energy.low < after.energy.value).all()
    assert (after.energy.value < after.energy.high).all()


@given(st.floats(0.2, 5), st.integers(1, COUNT - 1))
def test_scale_lies_between_prediction_and_measurement(factor, count):
    before = predicted()
    weights = []
    for n in (count, count + 1):
        rows = [measured(latency * factor, None) for latency in before.latency.value[:n]]
        _, scale = with_measured(before, np.arange(n), rows)
        assert scale is not None
        weights.append(np.log(scale.latency))
    assert 0 <= weights[0] / np.log(factor) <= 1 if factor != 1 else weights == [0, 0]
    assert abs(weights[0]) <= abs(weights[1])  # more measurements are trusted more
    assert scale.power == 1.0  # without energy measurements, power stays unchanged


GPU = find_gpu("rtx4090")
PROBLEM = find_op("matmul").problem(m=1024, n=768, k=512)


@pytest.fixture(scope="module")
def table():
    return Recommender([]).context.tables(PROBLEM, GPU)[0]


def test_runnable_configs_satisfy_constraints_and_do_not_spill(table):
    problem_space = table.space.at(PROBLEM)
    rows = table.runnable(problem_space)
    assert problem_space.valid[rows].all()
    assert table.usable[rows].all()
    assert (table.geometry(problem_space, 0).resident[rows] > 0).all()


def test_shortlist_is_a_subset_that_contains_the_best(table):
    problem_space = table.space.at(PROBLEM)
    rows = table.runnable(problem_space)
    short = SpaceCosts(Space([table]), [PROBLEM], [DEFAULT_POINT]).kernels[0].whole.rows
    assert len(short) <= SHORTLIST + 1 < len(rows)
    assert np.isin(short, rows).all()
    assert (np.diff(short) > 0).all()
    every, some = (predict(table, problem_space, which).limited().latency_s.min() for which in (rows, short))
    assert some <= 1.05 * every


def test_prediction_is_independent_of_other_rows(table):
    problem_space = table.space.at(PROBLEM)
    rows = table.runnable(problem_space)[:40]
    both, alone = predict(table, problem_space, rows).limited(), predict(table, problem_space, rows[7:8]).limited()
    assert (both.latency_s[7], both.energy_j[7]) == (alone.latency_s[0], alone.energy_j[0])
