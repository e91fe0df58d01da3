"""Test that refining measures only problems with uncertain predictions, and each problem once."""

from dataclasses import replace
from pathlib import Path

import pytest

from kernrec.errors import KernrecError, UsageError
from kernrec.measure.campaign.results import CampaignBudget
from kernrec.measure.collect import collect
from kernrec.measure.refine_planner import Refined
from kernrec.measure.request import CollectRequest, Strategy, WantedProblem
from kernrec.op import find_op
from kernrec.recommender.request import Objective
from tests.helpers.recording import make_measured_database, make_recording
from tests.helpers.sharing import measured_rows

pytestmark = pytest.mark.usefixtures("measured_here")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("recording") / "library.duckdb"
    make_measured_database(path, problems=3, configs=4)
    return path


def request(recording: Path | None, database: Path, configs: int | None = None, **more: object) -> CollectRequest:
    more = {"strategy": Strategy.REFINE, "budget": CampaignBudget(None, configs)} | more
    return CollectRequest(None, database, recording=recording, **more)  # type: ignore[arg-type]


def refine(wanted: CollectRequest) -> Refined:
    result = collect(wanted)
    assert result.error is None
    ((_, refined),) = result.outcomes
    assert isinstance(refined, Refined)
    return refined


def keys(database: Path) -> list[tuple[object, object]]:
    return [(row["problem_id"], row["config_id"]) for row in measured_rows(database, tier="screen")]


def test_config_budget_is_kept_and_the_next_run_resumes(library, tmp_path):
    database = tmp_path / "k.duckdb"
    first = refine(request(library, database, 5))
    assert first.measured == 5
    assert first.regret[1] < first.regret[0]
    second = refine(request(library, database))
    assert second.ended == "all configs that might be the best have been measured"
    assert second.regret[0] < first.regret[0]
    rows = keys(database)
    assert len(rows) == len(set(rows)) == 12
    assert second.regret[1] < 0.005
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.duckdb", "k.duckdb.query"]


def test_refinement_stops_below_the_requested_regret(library, tmp_path):
    bounded = replace(request(library, tmp_path / "k.duckdb"), until=0.9)
    result = refine(bounded)
    assert result.measured == 0
    assert result.ended == "the regret is below 90 %"


def test_energy_objective_measures_energy(tmp_path):
    database = tmp_path / "k.duckdb"
    recording = make_recording(tmp_path / "r.duckdb", 12)
    result = refine(replace(request(recording, database, 4), objective=Objective.ENERGY))
    rows = measured_rows(database, outcome="ok")
    assert {str(row["tier"]) for row in rows} == {"screen", "coarse"}
    assert sum(row["energy_j"] is not None for row in rows) == result.measured > 0


def test_impossible_request_is_refused_before_measuring(library, tmp_path):
    database = tmp_path / "k.duckdb"
    short = replace(request(library, database), budget=CampaignBudget(0.1, None))
    with pytest.raises(UsageError, match=r"shorter than one measurement, which takes up to 0\.5 s"):
        refine(short)
    with pytest.raises(UsageError, match="collected into itself"):
        refine(request(library, library))
    with pytest.raises(KernrecError, match="--replay works without"):
        refine(
            replace(request(None, database), problems=[WantedProblem("x", find_op("matmul").problem(m=64, n=64, k=64))])
        )
    with pytest.raises(UsageError, match="name what to measure"):
        refine(request(None, database))
    assert not database.exists()
