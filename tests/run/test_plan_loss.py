"""What a plan loses is what its variants cost above the best config of each shape."""

from dataclasses import replace

import pytest

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender
from kernrec.run.plan import make_plan
from kernrec.run.plan_loss import plan_loss
from kernrec.run.shapes import Shapes

GPU, QUERY = find_gpu("rtx4090"), Query(Objective.LATENCY, top=1)


@pytest.fixture(scope="module")
def recommender() -> Recommender:
    return Recommender([])


def plan_of(recommender: Recommender, **dims: object):
    return make_plan(recommender, Shapes.of(find_op("matmul"), "f16", None, dims), GPU, QUERY)


def test_a_plan_for_one_shape_loses_nothing(recommender: Recommender) -> None:
    loss = plan_loss(recommender, plan_of(recommender, m=64, n=512, k=512), 3)
    assert (loss.mean, loss.p95, loss.worst) == pytest.approx((0, 0, 0), abs=1e-6)


def test_ranges_lose_little_and_one_variant_for_all_shapes_loses_more(recommender: Recommender) -> None:
    plan = plan_of(recommender, m=range(16, 2049, 16), n=2048, k=512)
    loss = plan_loss(recommender, plan, 24)
    assert 0 <= loss.mean <= loss.p95 <= loss.worst < 0.5
    assert loss.mean < 0.05
    first = replace(plan.rows[0], high=plan.rows[-1].high)
    alone = plan_loss(recommender, replace(plan, rows=(first,)), 24)
    assert alone.mean > 4 * loss.mean
    assert f"{len(plan.rows)} ranges lose" in str(loss)
    assert "24 random shapes" in str(loss)


def test_shapes_that_no_range_fits_are_counted(recommender: Recommender) -> None:
    plan = plan_of(recommender, m=range(16, 65, 16), n=512, k=512)
    narrow = replace(plan, rows=tuple(replace(row, low={"m": 64}, high={"m": 64}) for row in plan.rows))
    assert plan_loss(recommender, narrow, 12).uncovered > 0
    with pytest.raises(UsageError, match="at least 1"):
        plan_loss(recommender, plan, 0)
