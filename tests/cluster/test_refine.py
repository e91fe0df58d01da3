"""Refining on several machines: a planner for each kind of GPU, and every measurement made once."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kernrec.cluster.commands import collect_on
from kernrec.errors import UsageError
from kernrec.measure.campaign.results import CampaignBudget
from kernrec.measure.collect import collect
from kernrec.measure.refine_planner import Refined
from kernrec.measure.request import CollectRequest, CollectResult, Strategy
from kernrec.recommender.request import Objective
from kernrec.store import Database
from tests.helpers.card_cluster import CardCluster
from tests.helpers.recording import make_recording

pytestmark = pytest.mark.usefixtures("cards_here")


def request(recording: Path, folder: Path, configs: int | None = None) -> CollectRequest:
    budget = CampaignBudget(None, configs)
    return CollectRequest(
        None, folder / "own.duckdb", recording=recording, strategy=Strategy.REFINE, budget=budget
    )  # fmt: skip


def rows_of(folder: Path) -> list[dict[str, object]]:
    with Database.open(folder / "own.duckdb") as opened:
        return opened.rows("measurement")


def configs_of(rows: list[dict[str, object]]) -> Counter[tuple[object, object]]:
    return Counter((row["problem_id"], row["config_id"]) for row in rows)


def only(result: CollectResult) -> Refined:
    assert result.error is None
    ((_, refined),) = result.outcomes
    assert isinstance(refined, Refined)
    return refined


def test_one_card_of_a_cluster_measures_what_one_machine_would(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recorded.duckdb", 20, energy=False)
    (alone := tmp_path / "alone").mkdir()
    expected = only(collect(request(recording, alone, 6)))
    refined = only(collect_on(CardCluster(tmp_path, 1), request(recording, tmp_path, 6)))
    assert refined == replace(expected, deciding_s=refined.deciding_s)
    assert configs_of(rows_of(tmp_path)) == configs_of(rows_of(alone))


@pytest.mark.every(4)
@pytest.mark.parametrize("dies_at", [3, 4, 6, 7])
def test_a_visit_of_a_machine_that_dies_is_made_by_another(tmp_path: Path, dies_at: int) -> None:
    def die(cluster: CardCluster, call: int) -> None:
        if call == dies_at:
            cluster.kill("machine-0")
            cluster.add_machine()

    recording = tmp_path / "recorded.duckdb"
    for size in (256, 512, 1024):
        make_recording(recording, 4, energy=False, size=size)
    refined = only(collect_on(CardCluster(tmp_path, 2, die), request(recording, tmp_path)))
    assert refined.ended == "every contender is measured"
    closed = configs_of([row for row in rows_of(tmp_path) if not row["block_open"]])
    assert set(closed.values()) == {1}
    assert len(closed) == refined.measured == 12


def test_each_kind_of_gpu_has_a_planner_and_energy_is_measured_where_it_counts(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recorded.duckdb", 8)
    make_recording(recording, 8, gpu="a100-sxm4-40gb")
    wanted = replace(request(recording, tmp_path, 3), gpu="all", objective=Objective.ENERGY)
    result = collect_on(CardCluster(tmp_path, 2), wanted)
    assert result.error is None
    assert {kind: refined.measured for kind, refined in result.outcomes} == {"rtx3090": 3, "a100-sxm4-40gb": 3}
    rows = rows_of(tmp_path)
    assert Counter(row["tier"] for row in rows if row["energy_j"] is not None) == {"coarse": 6}


@pytest.mark.deep
def test_the_time_of_the_cards_ends_it(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recorded.duckdb", 140, energy=False)
    limited = replace(request(recording, tmp_path), budget=CampaignBudget(0.7, None))
    refined = only(collect_on(CardCluster(tmp_path, 2), limited))
    assert refined.ended == "the budget is spent"
    assert 0 < len(rows_of(tmp_path)) < 126


def test_a_recording_is_not_refined_into_itself(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be collected into itself"):
        collect_on(CardCluster(tmp_path, 1), request(tmp_path / "own.duckdb", tmp_path))
