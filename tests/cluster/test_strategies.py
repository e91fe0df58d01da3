"""Test that several machines measure the same configs as one machine when refining and searching, without repeats."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernrec.cluster.commands import collect_on
from kernrec.measure.campaign.results import CampaignBudget
from kernrec.measure.collect import collect
from kernrec.measure.refine_planner import Refined
from kernrec.measure.request import CollectRequest, CollectResult, Strategy
from kernrec.measure.search_rounds import Searched
from kernrec.recommender.request import Objective
from tests.helpers.gpu_cluster import GpuCluster, killed_at
from tests.helpers.needs import needs
from tests.helpers.recording import make_recording
from tests.helpers.sharing import measured_rows

pytestmark = pytest.mark.usefixtures("gpus_here")
REFINE, GUIDE = Strategy.REFINE, Strategy.GUIDE


def request(
    folder: Path, strategy: Strategy, configs: int | None, objective: Objective = Objective.LATENCY
) -> CollectRequest:
    budget = CampaignBudget(None, configs)
    return CollectRequest(
        None, folder / "own.duckdb", "auto", folder / "recorded.duckdb", strategy, objective, budget=budget
    )  # fmt: skip


def rows_of(folder: Path) -> list[dict[str, object]]:
    return measured_rows(folder / "own.duckdb")


def times(rows: list[dict[str, object]]) -> Counter[tuple[object, ...]]:
    return Counter((row["problem_id"], row["config_id"], row["tier"]) for row in rows if not row["block_open"])


def only(result: CollectResult) -> Any:
    assert result.error is None
    ((_, outcome),) = result.outcomes
    return outcome


@pytest.mark.every(3)
@pytest.mark.parametrize(("strategy", "objective"), [
    (REFINE, Objective.LATENCY), (GUIDE, Objective.ENERGY),
    pytest.param(Strategy.GENETIC, Objective.PARETO, marks=[needs("xgboost"), pytest.mark.deep]),
])  # fmt: skip
def test_single_gpu_cluster_measures_the_same_rows_as_one_machine(tmp_path, strategy, objective):
    make_recording(tmp_path / "recorded.duckdb", 40)
    wanted = request(tmp_path, strategy, 16, objective)
    (alone := tmp_path / "alone").mkdir()
    expected = only(collect(replace(wanted, database=alone / "own.duckdb")))
    outcome = only(collect_on(GpuCluster(tmp_path, 1), wanted))
    if isinstance(outcome, Refined):
        expected = replace(expected, deciding_s=outcome.deciding_s)
    assert outcome == expected
    assert times(rows_of(tmp_path)) == times(rows_of(alone))


@pytest.mark.every(3)
def test_cluster_search_measures_energy_on_one_gpu_and_resumes(tmp_path):
    make_recording(tmp_path / "recorded.duckdb", 40)
    wanted = request(tmp_path, GUIDE, 16, Objective.ENERGY)
    searched = only(collect_on(GpuCluster(tmp_path, 3), wanted))
    rows = rows_of(tmp_path)
    assert sum(tier == "screen" for *_, tier in times(rows)) == 16
    assert len({row["session"] for row in rows if row["tier"] == "coarse"}) == 1
    assert searched.energies == sum(tier == "coarse" for *_, tier in times(rows)) > 0
    assert searched.best is not None
    searched = only(collect_on(GpuCluster(tmp_path, 2, killed_at(7)), replace(wanted, budget=CampaignBudget())))
    assert isinstance(searched, Searched)
    assert set(times(rows_of(tmp_path)).values()) == {1}
    assert sum(tier == "screen" for *_, tier in times(rows_of(tmp_path))) == searched.space == 40


def test_each_gpu_type_has_its_own_search_and_energy_measurements(tmp_path):
    for gpu in ("rtx3090", "a100-sxm4-40gb"):
        make_recording(tmp_path / "recorded.duckdb", 8, gpu=gpu)
    result = collect_on(GpuCluster(tmp_path, 2), replace(request(tmp_path, REFINE, 3, Objective.ENERGY), gpu="all"))
    assert result.error is None
    assert {kind: outcome.measured for kind, outcome in result.outcomes} == {"rtx3090": 3, "a100-sxm4-40gb": 3}
    assert Counter(row["tier"] for row in rows_of(tmp_path) if row["energy_j"] is not None) == {"coarse": 6}


def test_impossible_request_is_refused_before_measuring(tmp_path, refuses):
    def refused(changed: dict[str, Any]) -> None:
        for size in (256, 512):
            make_recording(tmp_path / "recorded.duckdb", 2, size=size)
        if "recording" in changed:
            changed = {"recording": tmp_path / changed["recording"]}
        collect_on(GpuCluster(tmp_path, 1), replace(request(tmp_path, REFINE, 5), **changed))

    refuses(refused, [
        {"strategy": GUIDE}, {"budget": CampaignBudget(0.01)}, {"recording": "own.duckdb"},
        {"strategy": Strategy.PLAN},
    ])  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["recorded.duckdb"]
