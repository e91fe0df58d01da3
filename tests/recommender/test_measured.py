"""Test recommendations from a database of measurements: which rows count, and what notes report."""

import json
from pathlib import Path
from typing import Any

import pytest

from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.recommender import Answer, Objective, Query, Recommendation, Recommender
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.space import Space
from kernrec.recommender.rank import RankedSpace
from kernrec.store import Database
from kernrec.store.measurement import Measurement
from kernrec.util.human import Note
from tests.helpers.reading import reading_here
from tests.helpers.recording import measured_row, store_rows
from tests.helpers.sharing import merge

GPU = "h200-sxm"
SHAPE = {"m": 2048, "n": 2056, "k": 2056}  # only matmul_simt runs rows that are no multiples of 16 elements
PROBLEM = find_op("matmul").problem(**SHAPE)


@pytest.fixture(scope="module")
def predicted():
    return Recommender([]).recommend("matmul", GPU, SHAPE, query=Query(Objective.LATENCY, top=40)).recommendations


def row(recommendation: Recommendation, factor: float = 1.0, **changes: Any) -> dict[str, Any]:
    return measured_row(GPU, recommendation, PROBLEM, factor) | changes


@pytest.fixture
def ask(tmp_path):

    def ask(rows: list[dict[str, Any]], query: Query | None = None) -> Answer:
        path = tmp_path / "own.duckdb"
        path.unlink(missing_ok=True)
        return Recommender([store_rows(path, rows)]).recommend(
            "matmul", GPU, SHAPE, query=query or Query(Objective.LATENCY, top=40)
        )

    return ask


def test_conflicting_rows_of_other_users_are_noted_but_not_used(predicted, tmp_path):
    first = predicted[0]
    own, theirs = tmp_path / "own.duckdb", tmp_path / "theirs.duckdb"
    store_rows(own, [row(first)])
    store_rows(theirs, [row(first, 0.7, session="theirs")])
    with reading_here(), Database.open(own, read_only=False) as database:
        merge(database, theirs)
    answer = Recommender([own]).recommend("matmul", GPU, SHAPE, query=Query(Objective.LATENCY, top=40))
    recommendation = recommendation_of(answer, first.config)
    assert recommendation is not None
    assert recommendation.latency_s.value == pytest.approx(first.latency_s.value)
    (note,) = [note for note in answer.notes if "measurements of others differ" in note]
    assert isinstance(note, Note)
    assert note.startswith(f"{first.kernel.name}: measurements of others differ from yours for 1 config")
    assert "`kernrec db withdraw --merged`" in note.why


def recommendation_of(answer: Answer, config: Any) -> Recommendation | None:
    return next(
        (recommendation for recommendation in answer.recommendations if recommendation.config == dict(config)), None
    )


def failure(recommendation: Recommendation, outcome: str, **changes: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("latency_s", "latency_low_s", "latency_high_s", "energy_j", "power_w"))
    return row(recommendation, outcome=outcome, **nothing, **changes)


def test_measured_config_uses_its_measurement(ask, predicted):
    slow = predicted[5]
    answer = ask([row(slow, 0.5), row(slow, 0.52, session="tuesday", measured_at="2026-03-02T12:00:00")])
    best = answer.best
    assert best.config == slow.config
    assert best.latency_s.value == pytest.approx(slow.latency_s.value * 0.51)
    assert best.latency_s.low == pytest.approx(slow.latency_s.value * 0.51 * 0.98)
    assert best.latency_s.high == pytest.approx(slow.latency_s.value * 0.51 * 1.03)
    assert (best.latency_s.source, best.energy_j.source) == ("measured", "measured")
    assert best.measurement is not None
    path = best.measurement.database
    assert (best.sessions, best.measured_at, best.device) == (2, "2026-03-02T12:00:00Z", "NVIDIA H200")
    assert (best.database, best.signed_by, best.contributors) == (path, [], 1)
    assert Path(path).is_file()
    assert json.loads(json.dumps(best.as_dict()))["device"] == "NVIDIA H200"


def test_inputs_of_zeros_draw_less_power_and_ignore_measurements_of_random_inputs(tmp_path, ask, predicted):
    rows = [row(predicted[5], 0.5), failure(predicted[0], "incorrect")]
    random, zeros = (ask(rows, Query(Objective.LATENCY, top=40, inputs=inputs)) for inputs in ("random", "zeros"))
    assert random.best.source == "measured"
    assert {recommendation.source for recommendation in zeros.recommendations} == {"predicted"}
    assert recommendation_of(zeros, predicted[0].config) is None  # the config is excluded for zeros too
    less = recommendation_of(zeros, predicted[1].config)
    assert less is not None
    assert less.energy_j.value < 0.95 * predicted[1].energy_j.value
    assert less.latency_s.value <= predicted[1].latency_s.value
    assert zeros.baselines == ()
    assert (random.as_dict()["inputs"], zeros.as_dict()["inputs"]) == ("random", "zeros")
    assert any("zeros" in note for note in zeros.notes)
    assert not any("zeros" in note for note in random.notes)
    (regret,) = Recommender([tmp_path / "own.duckdb"]).regrets(zeros)
    assert min(cost for _, cost, _ in regret.contenders) > rows[0]["latency_s"]


def test_warm_l2_ignores_measurements_of_a_cold_one(tmp_path, ask, predicted):
    rows = [row(predicted[5], 0.5), failure(predicted[0], "incorrect")]
    warm = ask(rows, Query(Objective.LATENCY, top=40, l2="warm"))
    assert {recommendation.source for recommendation in warm.recommendations} == {"predicted"}
    assert recommendation_of(warm, predicted[0].config) is None  # the config is excluded with a warm L2 too
    assert warm.baselines
    assert (warm.as_dict()["inputs"], warm.as_dict()["l2"]) == ("random", "warm")
    assert "L2 is warm: measurements, which start with a cold L2, are not used" in warm.notes


@pytest.mark.parametrize(("rows", "least", "most"), [(1024, 0.3, 0.9), (10**6, 0.9, 1.0)])
def test_warm_l2_speeds_up_only_problems_that_fit(rows, least, most):
    """An H100's L2 has 50 MiB. All tensors have 8 MiB in the first problem, and 8 GB in the second problem."""
    problem = {"rows": rows, "columns": 1024}
    cold, warm = (
        Recommender([]).recommend("softmax", "h100-sxm", problem, query=Query("latency", l2=l2)).best
        for l2 in ("cold", "warm")
    )
    assert least < warm.latency_s.value / cold.latency_s.value < most
    assert warm.energy_j.value < cold.energy_j.value


def test_measured_config_is_found_despite_a_slow_prediction(ask):
    recommender = Recommender([])
    table = next(t for t in recommender.context.on(find_gpu(GPU)).tables(PROBLEM) if t.kernel.name == "matmul_simt")
    problem_space = table.space.at(PROBLEM)
    estimated = RankedSpace(Space([table]), [PROBLEM], (OperatingPoint(),)).kernels[0].rows
    left_out = next(row for row in table.runnable(problem_space).tolist() if row not in estimated)
    first = recommender.recommend("matmul", GPU, SHAPE).best
    answer = ask([row(first, 0.3, config=table.space.config(left_out))])
    assert answer.best.config == table.space.config(left_out)
    assert answer.best.source == "measured"


def test_impossibly_fast_measurement_is_ignored_and_counted(ask):
    first = Recommender([]).recommend("matmul", GPU, SHAPE).best
    answer = ask([row(first, 1e-4)])
    assert answer.best.source != "measured"
    assert any("measurements of 1 config not used: impossible" in note for note in answer.notes)


def test_missing_energy_is_predicted_for_the_measured_time(ask, predicted):
    first = predicted[0]
    recommendation = recommendation_of(ask([row(first, 0.5, energy_j=None, power_w=None)]), first.config)
    assert recommendation is not None
    assert (recommendation.latency_s.source, recommendation.energy_j.source) == ("measured", "predicted")
    assert recommendation.energy_j.value == pytest.approx(first.energy_j.value * 0.5)
    assert recommendation.as_dict()["energy_source"] == "predicted"


@pytest.mark.every(2)
@pytest.mark.parametrize(("measured", "limits", "counts"), [
    ({}, {}, True), ({}, {"power_limit_w": 700.0}, True), ({"power_limit_w": 700.0}, {}, True),
    ({"power_limit_w": 400.0}, {}, False), ({"power_limit_w": 400.0}, {"power_limit_w": 400.0}, True),
    ({}, {"power_limit_w": 400.0}, False), ({"locked_sm_clock_hz": 1.41e9}, {}, False),
    ({"locked_sm_clock_hz": 1.41e9}, {"clock_hz": 1.41e9}, True),
    ({"locked_sm_clock_hz": 1.41e9}, {"clock_hz": 1.2e9}, False), ({}, {"clock_hz": 1.41e9}, False),
    ({"locked_memory_clock_hz": 1e9}, {}, False),
])  # fmt: skip
def test_measurement_is_used_only_at_its_power_limit_and_clock(ask, predicted, measured, limits, counts):
    answer = ask([row(predicted[0], 0.1, **measured)], Query(Objective.LATENCY, **limits))
    assert (answer.best.source == "measured") is counts
    assert any("other power limit or clock" in note for note in answer.notes) is not counts


@pytest.mark.parametrize("outcome", ["incorrect", "crash", "timeout", "compile"])
def test_failed_config_is_skipped_and_counted(ask, predicted, outcome):
    failed = predicted[:3]
    answer = ask([failure(recommendation, outcome) for recommendation in failed])
    assert not [recommendation for recommendation in failed if recommendation_of(answer, recommendation.config)]
    assert f"matmul_simt: 3 configs left out: failed on this GPU (3 {outcome})" in answer.notes


@pytest.mark.parametrize("outcome", ["crash", "incorrect", "quarantined"])
def test_later_success_readmits_all_but_incorrect_configs(ask, predicted, outcome):
    rows = [failure(predicted[0], outcome), row(predicted[0], 0.5, session="later", measured_at="2026-03-02")]
    assert (recommendation_of(ask(rows), predicted[0].config) is None) is (outcome == "incorrect")
    rows[1]["measured_at"] = "2026-02-01"
    assert (recommendation_of(ask(rows), predicted[0].config) is None) is (outcome != "quarantined")


def test_best_imported_library_kernel_gets_its_own_row(ask, predicted):
    usual = {"kernel": "Xgemm", "kernel_hash": "external:1"}
    theirs = [row(predicted[0], 0.7, config={"MWG": 32}, **usual), row(predicted[0], 0.5, config={"MWG": 64}, **usual)]
    answer = ask(theirs)
    (best,) = answer.foreign
    assert (best.kernel, dict(best.config)) == ("Xgemm", {"MWG": 64})
    assert best.latency_s.value == pytest.approx(0.5 * predicted[0].latency_s.value)
    assert "Xgemm" not in {recommendation.kernel.name for recommendation in answer.recommendations}


def test_grown_database_is_read_again(tmp_path, predicted):
    path = tmp_path / "own.duckdb"
    Database.open(path, read_only=False, create=True).close()
    recommender = Recommender([path])
    before = recommender.recommend("matmul", GPU, SHAPE, query=Query(Objective.LATENCY))
    assert before is recommender.recommend("matmul", GPU, SHAPE, query=Query(Objective.LATENCY))
    with Database.open(path, read_only=False) as database:
        database.add_measurements(map(Measurement.from_columns, [row(predicted[0], 0.5)]))
    assert recommender.recommend("matmul", GPU, SHAPE, query=Query(Objective.LATENCY)).best.source == "measured"
