"""Test the static table, its shortlist and its predictions for the library's kernels."""

import numpy as np
import pytest

from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.recommender import Recommender
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.recommender.estimate.prediction import SHORTLIST, Space, SpaceCosts, predict

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
