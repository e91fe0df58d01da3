"""A plan that was made once is read by the next process, and never out of date."""

import os
from pathlib import Path

import pytest

from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender
from kernrec.run import cached_plan as plans
from kernrec.run.plan import Plan
from kernrec.run.shapes import Shapes

GPU = find_gpu("rtx4090")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Plan]:
    """An empty cache, and the plans that are made from now on."""
    (tmp_path / "kernrec").mkdir()
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "kernrec"))
    made_plans: list[Plan] = []
    make = plans.make_plan

    def counted(*arguments: object) -> Plan:
        made_plans.append(make(*arguments))
        return made_plans[-1]

    monkeypatch.setattr(plans, "make_plan", counted)
    return made_plans


def plan(database: Path | None = None, objective: Objective = Objective.LATENCY, n: int = 64) -> Plan:
    shapes = Shapes.of(find_op("reduce"), None, None, {"rows": [8, 512], "columns": n})
    return plans.cached_plan(Recommender([database] if database else []), shapes, GPU, Query(objective, top=1))


def test_a_second_recommender_reads_what_the_first_has_made(made: list[Plan]) -> None:
    first, second = plan(), plan()
    assert len(made) == 1
    assert str(second) == str(first)
    assert second.as_dicts() == first.as_dicts()
    assert [row.variant.kernel for row in second.rows] == [row.variant.kernel for row in first.rows]


def test_another_question_and_other_data_have_a_plan_of_their_own(made: list[Plan], tmp_path: Path) -> None:
    from kernrec.store import Database

    path = tmp_path / "own.duckdb"
    with Database.open(path, read_only=False, create=True):
        pass
    plan()
    plan(objective=Objective.ENERGY)
    plan(n=128)
    plan(path)
    assert len(made) == 4
    plan(path)
    assert len(made) == 4
    os.utime(path, ns=(1, 1))  # as a new measurement would leave it
    plan(path)
    assert len(made) == 5


def test_a_damaged_file_is_made_again(made: list[Plan], tmp_path: Path) -> None:
    first = plan()
    (file,) = (tmp_path / "kernrec/derived").glob("plan.reduce.*")
    file.write_bytes(file.read_bytes()[:-20])
    assert plan().as_dicts() == first.as_dicts()
    assert len(made) == 2
