"""Searching on several machines: on one card what one machine would, on several every config once."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kernrec.cluster.commands import collect_on
from kernrec.errors import UsageError
from kernrec.measure.campaign.results import CampaignBudget
from kernrec.measure.collect import collect
from kernrec.measure.request import CollectRequest, CollectResult, Strategy
from kernrec.measure.search_rounds import Searched
from kernrec.recommender.request import Objective
from kernrec.store import Database
from tests.helpers.card_cluster import CardCluster
from tests.helpers.needs import needs
from tests.helpers.recording import make_recording

pytestmark = pytest.mark.usefixtures("cards_here")


def request(
    recording: Path, folder: Path, configs: int, objective: Objective, strategy: Strategy = Strategy.GUIDE
) -> CollectRequest:
    budget = CampaignBudget(None, configs)
    return CollectRequest(
        None, folder / "own.duckdb", "auto", recording, strategy, objective, budget=budget
    )  # fmt: skip


def rows_of(folder: Path) -> list[dict[str, object]]:
    with Database.open(folder / "own.duckdb") as opened:
        return opened.rows("measurement")


def measured(rows: list[dict[str, object]]) -> Counter[tuple[object, object]]:
    """(config, tier) of the rows of blocks that ended."""
    return Counter((row["config_id"], row["tier"]) for row in rows if not row["block_open"])


def only(result: CollectResult) -> Searched:
    assert result.error is None
    ((_, searched),) = result.outcomes
    assert isinstance(searched, Searched)
    return searched


@pytest.mark.parametrize(
    ("objective", "strategy"),
    [
        (Objective.ENERGY, Strategy.GUIDE),
        pytest.param(Objective.PARETO, Strategy.GENETIC, marks=[needs("xgboost"), pytest.mark.deep]),
    ],
)
def test_one_card_of_a_cluster_searches_as_one_machine_would(
    tmp_path: Path, objective: Objective, strategy: Strategy
) -> None:
    recording = make_recording(tmp_path / "recorded.duckdb", 60)
    (alone := tmp_path / "alone").mkdir()
    expected = only(collect(request(recording, alone, 25, objective, strategy)))
    result = collect_on(CardCluster(tmp_path, 1), request(recording, tmp_path, 25, objective, strategy))
    assert expected.energies > 0
    assert only(result) == expected
    assert measured(rows_of(tmp_path)) == measured(rows_of(alone))


def test_several_cards_measure_each_config_once_and_one_of_them_all_energies(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recorded.duckdb", 80)
    searched = only(collect_on(CardCluster(tmp_path, 3), request(recording, tmp_path, 30, Objective.ENERGY)))
    rows = rows_of(tmp_path)
    times = measured(rows)
    assert set(times.values()) == {1}
    assert sum(tier == "screen" for _, tier in times) == 30
    assert len({row["session"] for row in rows if row["tier"] == "coarse"}) == 1
    assert searched.energies == sum(tier == "coarse" for _, tier in times) > 0
    assert searched.best is not None


def test_what_a_machine_that_dies_was_to_measure_is_measured_by_another(tmp_path: Path) -> None:
    def die(cluster: CardCluster, call: int) -> None:
        if call == 7:
            cluster.kill("machine-0")
            cluster.add_machine()

    recording = make_recording(tmp_path / "recorded.duckdb", 24)
    searched = only(collect_on(CardCluster(tmp_path, 2, die), request(recording, tmp_path, 200, Objective.ENERGY)))
    times = measured(rows_of(tmp_path))
    assert set(times.values()) == {1}
    assert sum(tier == "screen" for _, tier in times) == searched.space == 24
    assert searched.energies > 0


def test_a_search_goes_on_where_another_ended(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recorded.duckdb", 40)
    for configs in (10, 8):
        searched = only(collect_on(CardCluster(tmp_path, 1), request(recording, tmp_path, configs, Objective.EDP)))
    assert searched.latencies + sum(row["outcome"] != "ok" for row in rows_of(tmp_path)) == 18
    assert set(measured(rows_of(tmp_path)).values()) == {1}


@pytest.mark.deep
def test_each_kind_of_gpu_has_a_search(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recorded.duckdb", 12, energy=False)
    make_recording(recording, 12, gpu="a100-sxm4-40gb", energy=False)
    wanted = replace(request(recording, tmp_path, 5, Objective.LATENCY), gpu="all")
    result = collect_on(CardCluster(tmp_path, 2), wanted)
    assert result.error is None
    assert sorted(kind for kind, _ in result.outcomes) == ["a100-sxm4-40gb", "rtx3090"]
    assert Counter(row["gpu"] for row in rows_of(tmp_path)) == {"rtx3090": 5, "a100-sxm4-40gb": 5}


def test_several_problems_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    for size in (256, 512):
        make_recording(tmp_path / "recorded.duckdb", 2, size=size)
    with pytest.raises(UsageError, match="--strategy guide searches one problem"):
        collect_on(CardCluster(tmp_path, 1), request(tmp_path / "recorded.duckdb", tmp_path, 5, Objective.LATENCY))
    assert not (tmp_path / "own.duckdb").exists()


def test_a_budget_shorter_than_one_measurement_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    wanted = request(make_recording(tmp_path / "r.duckdb", 4), tmp_path, 5, Objective.LATENCY)
    wanted = replace(wanted, budget=CampaignBudget(0.01, None))
    with pytest.raises(UsageError, match=r"0\.01 s is shorter than one measurement"):
        collect_on(CardCluster(tmp_path, 1), wanted)
    assert not (tmp_path / "own.duckdb").exists()
