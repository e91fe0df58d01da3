"""The static table, its shortlist and its predictions, on the library's own kernels."""

import numpy as np
import pytest

from kernrec.errors import KernrecError
from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.op import find_op
from kernrec.recommender import Recommender
from kernrec.recommender.estimate.engine import SHORTLIST, Space, SpaceCosts
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.prediction import predict
from kernrec.recommender.estimate.static_table import StaticTable

GPU = find_gpu("rtx4090")
PROBLEM = find_op("matmul").problem(m=1024, n=768, k=512)


@pytest.fixture(scope="module")
def table() -> StaticTable:
    return Recommender([]).context.tables(PROBLEM, GPU)[0]


def test_runnable_configs_satisfy_constraints_and_do_not_spill(table: StaticTable) -> None:
    problem_space = table.space.at(PROBLEM)
    rows = table.runnable(problem_space)
    assert problem_space.valid[rows].all()
    assert table.usable[rows].all()
    assert (table.geometry(problem_space, 0).resident[rows] > 0).all()


def test_occupancy_heuristic_prefers_resident_warps_then_block_size(table: StaticTable) -> None:
    problem_space = table.space.at(PROBLEM)
    rows = table.runnable(problem_space)
    geometry = table.geometry(problem_space, 0)
    (costed,) = SpaceCosts(Space([table], whole=True), [PROBLEM], [DEFAULT_POINT]).kernels
    chosen = rows[costed.heuristics[0]]
    equals = rows[geometry.occupancy[rows] == geometry.occupancy[rows].max()]
    assert chosen in equals
    assert geometry.warps[chosen] == geometry.warps[equals].max()


def test_launch_without_profiles_is_named() -> None:
    with pytest.raises(KernrecError, match="no database holds profiles of matmul_simt"):
        StaticTable.of(find_kernel("matmul_simt"), PROBLEM, GPU, {})


def test_shortlist_is_a_subset_that_contains_the_best(table: StaticTable) -> None:
    problem_space = table.space.at(PROBLEM)
    rows = table.runnable(problem_space)
    short = SpaceCosts(Space([table]), [PROBLEM], [DEFAULT_POINT]).kernels[0].whole.rows
    assert len(short) <= SHORTLIST + 1 < len(rows)
    assert np.isin(short, rows).all()
    assert (np.diff(short) > 0).all()
    every, some = (predict(table, problem_space, which).limited().latency_s.min() for which in (rows, short))
    assert some <= 1.05 * every


def test_prediction_is_independent_of_other_rows(table: StaticTable) -> None:
    problem_space = table.space.at(PROBLEM)
    rows = table.runnable(problem_space)[:40]
    both, alone = predict(table, problem_space, rows).limited(), predict(table, problem_space, rows[7:8]).limited()
    assert (both.latency_s[7], both.energy_j[7]) == (alone.latency_s[0], alone.energy_j[0])


def test_many_operating_points_cost_what_each_costs(table: StaticTable) -> None:
    space = Space([table], whole=True)
    points = [DEFAULT_POINT, OperatingPoint(200.0), OperatingPoint(None, 1.2e9), OperatingPoint(300.0, 1.8e9)]
    costed = SpaceCosts(space, [PROBLEM], points)
    costed.sweep([None])
    together, prediction = costed.limited, costed.kernels[0].whole
    for i, point in enumerate(points):
        limited, alone = together.at(i), prediction.limited(point)
        for name in ("latency_s", "energy_j", "power_w", "clock_hz", "capped"):
            assert (getattr(limited, name) == getattr(alone, name)).all()
    positions = np.array([3, 11])
    swept = SpaceCosts(space, [PROBLEM], points[:2])
    swept.sweep([positions])
    some = swept.limited
    assert (some.energy_j[1, positions] == prediction.limited(points[1]).energy_j[positions]).all()
    assert np.isinf(np.delete(some.energy_j[1], positions)).all()
