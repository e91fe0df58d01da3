"""Test that a search on a replayed device finds the least energy with few energy measurements, and can be resumed."""

from pathlib import Path

import pytest

from kernrec.measure.campaign.results import CampaignBudget
from kernrec.measure.collect import collect
from kernrec.measure.request import CollectRequest, CollectResult, Strategy
from kernrec.measure.search_rounds import Searched
from kernrec.recommender.request import Objective
from tests.helpers.needs import needs
from tests.helpers.recording import make_measured_database, make_recording
from tests.helpers.sharing import measured_rows

pytestmark = [needs("scipy", "xgboost"), pytest.mark.usefixtures("measured_here")]


def search(
    recording: Path, database: Path, configs: int, objective: Objective, strategy: Strategy = Strategy.GUIDE
) -> tuple[CollectResult, Searched]:
    budget = CampaignBudget(None, configs)
    result = collect(
        CollectRequest(None, database, recording=recording, strategy=strategy, objective=objective, budget=budget)
    )
    ((_, searched),) = result.outcomes
    assert isinstance(searched, Searched)
    return result, searched


@pytest.mark.every(2)
@pytest.mark.parametrize("strategy", [Strategy.GUIDE, Strategy.GENETIC])
def test_energy_search_measures_few_energies_and_resumes(strategy, tmp_path):
    recording, database = make_recording(tmp_path / "r.duckdb", 60), tmp_path / "k.duckdb"
    result, first = search(recording, database, 20, Objective.ENERGY, strategy)
    assert result.error is None
    assert 0 < first.energies <= first.latencies <= 20
    _, second = search(recording, database, 15, Objective.ENERGY, strategy)
    assert second.energies < second.latencies
    assert first.latencies < second.latencies <= 35
    assert first.best is not None
    assert second.best is not None
    assert (second.best.energy_j or 0.0) <= (first.best.energy_j or 0.0)
    assert second.front[0].latency_s <= second.best.latency_s
    screened, coarse = ([row["config_id"] for row in measured_rows(database, tier=t)] for t in ("screen", "coarse"))
    assert len(screened) == len(set(screened)) <= 35
    assert len(coarse) == len(set(coarse)) == second.energies


def test_several_problems_are_refused_before_measuring(tmp_path, refuses):
    recording = tmp_path / "r.duckdb"
    make_measured_database(recording, problems=2, configs=2)
    refuses(lambda: search(recording, tmp_path / "k.duckdb", 5, Objective.LATENCY))
    assert not (tmp_path / "k.duckdb").exists()
