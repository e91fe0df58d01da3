"""Test `kernrec train` and `kernrec evaluate` on simulated measurements: the analytical model times a known factor."""

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from kernrec.cli.app import run
from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.recommender.estimate.space import Space, predict
from kernrec.recommender.rank import RankedSpace
from kernrec.util.human import Note
from tests.helpers.needs import needs
from tests.helpers.recording import simulated_rows, store_rows

pytestmark = [pytest.mark.slow, needs("xgboost")]

GPU = "rtx4090"
FACTOR = 1.3
SHAPE = {"m": 900, "n": 700, "k": 300}
FASTEST = Query(Objective.LATENCY, top=1)
simulated = partial(simulated_rows, GPU, step=256, configs=12, factor=FACTOR)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return store_rows(tmp_path_factory.mktemp("db") / "own.duckdb", simulated(12))


@pytest.fixture(scope="module")
def trained(measured):
    assert run(["train", "--op", "mm", "--db", str(measured)]) == 0
    return measured


def test_trained_model_predicts_an_unmeasured_shape(trained):
    analytical = Recommender([]).recommend("matmul", GPU, SHAPE, query=FASTEST).best
    learned = Recommender([trained]).recommend("matmul", GPU, SHAPE, query=FASTEST)
    best = learned.best
    assert analytical.latency_s.source == "predicted"
    assert best.latency_s.source == best.energy_j.source == "learned"
    assert best.latency_s.value / analytical.latency_s.value == pytest.approx(FACTOR, rel=0.1)
    assert best.latency_s.high / best.latency_s.low < analytical.latency_s.high / analytical.latency_s.low
    assert any(note.startswith("source learned") for note in learned.notes)


def test_trained_model_keeps_a_wide_interval_on_an_unmeasured_gpu(trained):
    # Shrinkage toward the backend's time raises the predicted time by a few per cent. The lower end of the interval
    # rises more than the time, and the upper end does not change.
    latency = Recommender([trained]).recommend("matmul", "a100", SHAPE).best.latency_s
    assert latency.source == "transferred"
    assert latency.high / latency.value >= 1.9
    assert latency.low < latency.value


def test_train_refuses_replayed_measurements(tmp_path, capsys):
    again = {"protocol_version": 0, "measured_by": "kernrec 0.1.0", "replayed": True}
    path = store_rows(tmp_path / "replayed.duckdb", [row | again for row in simulated(1)])
    assert run(["train", "--db", str(path)]) == 2
    message = capsys.readouterr().err
    assert "left out 12 configs that were only replayed" in message
    assert "no measurement to learn from" in message
    assert not (tmp_path / "models").exists()


@pytest.mark.every(3)
def test_evaluate_scores_every_ranking_method(measured, tmp_path, capsys):
    assert run(["evaluate", "--db", str(measured), "--json"]) == 0
    evaluation = json.loads(capsys.readouterr().out)
    by_method = {(s["method"], s["quantity"]): s for s in evaluation["scores"]}
    assert {method for method, _ in by_method} >= {"learned", "predicted", "occupancy", "random"}
    learned, random = by_method["learned", "latency"], by_method["random", "latency"]
    assert learned["problems"] == 12
    assert learned["efficiency"]["1"] > random["efficiency"]["1"]
    assert learned["median_error"] < by_method["predicted", "latency"]["median_error"]
    assert by_method["occupancy", "energy"]["energy_saved"] == pytest.approx(0.0, abs=0.5)
    # The simulated GPU differs from the analytical model only by a factor on latency.
    calibrated = by_method["calibrated", "latency"]
    assert calibrated["median_error"] < 0.1 < by_method["predicted", "latency"]["median_error"]
    assert {quantity for _, quantity in by_method} == {"latency", "energy", "edp"}
    assert learned["rank_correlation"] > 0.9
    assert by_method["learned", "edp"]["problems"] == 12
    assert by_method["learned", "energy"]["lowest_energy_saved"] >= -0.05
    assert by_method["learned", "energy"]["lowest_energy_slowdown"] < 0.1


@pytest.fixture(scope="module")
def calibrated(measured, tmp_path_factory):
    own = Path(shutil.copy(measured, tmp_path_factory.mktemp("calibrated")))
    assert run(["train", "--calibrate", "--db", str(own)]) == 0
    return own


def test_calibration_recovers_a_known_factor_and_reports_the_gain(measured, tmp_path, capsys):
    own = Path(shutil.copy(measured, tmp_path))
    assert run(["train", "--calibrate", "--db", str(own), "--json"]) == 0
    printed = capsys.readouterr()
    (result,) = json.loads(printed.out)
    assert result["calibration"]["core_time"] == pytest.approx(FACTOR, rel=0.15)
    before, after = result["calibration"]["time_factor"]
    assert after < 1.1 < before
    finding = "latency of 12 problems, each held out: off by a factor of 1."
    assert finding in printed.err
    assert any(finding in text for text in result["findings"])


def test_calibration_applies_to_every_gpu_of_the_architecture(calibrated):
    for gpu in (GPU, "l40s"):  # both GPUs are sm_89
        plain = Recommender([calibrated], calibrated=False).recommend("matmul", gpu, SHAPE, query=FASTEST)
        answer = Recommender([calibrated]).recommend("matmul", gpu, SHAPE, query=FASTEST)
        assert answer.best.latency_s.source == "predicted"
        assert answer.best.latency_s.value / plain.best.latency_s.value == pytest.approx(FACTOR, rel=0.1)
        assert answer.calibration is not None
        rows = answer.calibration.rows  # configs at the power limit are left out
        assert answer.calibration.problems == 12
        assert 48 <= rows <= 144
        assert any(answer.calibration.hash in n and f"{rows} configs on 12 problems" in n for n in answer.notes)
        assert answer.as_dict()["calibration"]["hash"] == answer.calibration.hash
        assert plain.calibration is None
    other = Recommender([calibrated]).recommend("matmul", "a100", SHAPE, query=FASTEST)
    assert other.calibration is None
    assert (
        other.best.latency_s.value
        == Recommender([]).recommend("matmul", "a100", SHAPE, query=FASTEST).best.latency_s.value
    )


@pytest.mark.every(3)
def test_model_is_used_only_with_the_calibration_that_it_was_trained_with(calibrated, tmp_path, capsys):
    own = Path(shutil.copy(calibrated, tmp_path))
    assert run(["train", "--op", "mm", "--db", str(own)]) == 0  # this model corrects the uncalibrated analytical model
    before = Recommender([own]).recommend("matmul", GPU, SHAPE, query=FASTEST)
    assert run(["train", "--calibrate", "--db", str(own)]) == 0
    refused = Recommender([own]).recommend("matmul", GPU, SHAPE, query=FASTEST)
    assert refused.best.latency_s.source == "predicted"
    (note,) = [note for note in refused.notes if note.startswith("model matmul")]
    assert note.startswith("model matmul was trained with the data sheet's coefficients of sm_89, but kernrec now uses")
    again = Recommender([own], calibrated=False).recommend("matmul", GPU, SHAPE, query=FASTEST)
    assert again.best.latency_s == before.best.latency_s
    assert run(["train", "--op", "mm", "--db", str(own)]) == 0
    capsys.readouterr()
    renewed = Recommender([own]).recommend("matmul", GPU, SHAPE, query=FASTEST)
    assert renewed.best.latency_s.source == "learned"
    assert renewed.best.latency_s.value == pytest.approx(before.best.latency_s.value, rel=0.1)
    assert run(["db", "info", "--db", str(own), "--json"]) == 0
    calibration, model = json.loads(capsys.readouterr().out)["learned"]
    assert (calibration["what"], calibration["problems"]) == ("calibration of sm_89", 12)
    assert 48 <= calibration["configs"] <= 144
    assert (model["what"], model["calibration"]) == ("model matmul", f"calibrated: sm_89 {calibration['hash']}")


@pytest.mark.parametrize("damage", ["", "{", '{"format": 1}'])
def test_damaged_calibration_is_reported_once_and_ignored(calibrated, tmp_path, damage):
    own = Path(shutil.copy(calibrated, tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "calibration.json").write_text(damage)
    recommender = Recommender([own])
    answer = recommender.recommend("matmul", GPU, SHAPE)
    assert answer.calibration is None
    assert sum("calibration.json" in note and note.endswith("not used") for note in answer.notes) == 1
    assert not any("calibration.json" in note for note in recommender.recommend("matmul", "a100", SHAPE).notes)


@pytest.mark.parametrize(("arguments", "message"), [
    (["train", "--op", "conv"], "no measurement of conv2d to learn from"), (["train", "--op", "matmull"], "unknown op"),
    (["evaluate", "--split", "row"], "unknown split 'row'"),
])  # fmt: skip
def test_train_refuses_invalid_arguments_in_one_line(measured, arguments, message, capsys):
    assert run([*arguments, "--db", str(measured)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_too_few_problems_error_states_how_many_are_missing(tmp_path, capsys):
    path = store_rows(tmp_path / "few.duckdb", simulated(4))
    assert run(["train", "--db", str(path), "--json"]) == 0
    assert "5 more are needed" in capsys.readouterr().err


def test_train_refuses_too_few_measurements(tmp_path, capsys):
    rows = list(simulated(2))
    path = store_rows(tmp_path / "few.duckdb", rows[:5])
    assert run(["train", "--db", str(path)]) == 2
    assert capsys.readouterr().err == "kernrec: matmul: 5 measured configs to learn from; a model needs at least 8\n"
    assert not (tmp_path / "models").exists()
    store_rows(path, rows[5:13])  # the last row belongs to a second problem
    assert run(["evaluate", "--db", str(path), "--json"]) == 0
    printed = capsys.readouterr()
    assert "no learned estimate is scored: the other folds have 1 measured config to learn from" in printed.err
    assert {score["method"] for score in json.loads(printed.out)["scores"]} >= {"predicted", "random"}
    assert run(["train", "--db", str(path)]) == 0


@pytest.mark.parametrize(
    ("library", "command"),
    [("xgboost", ["train"]), ("sklearn", ["train", "--calibrate"]), ("scipy", ["evaluate"])],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_missing_library_is_reported_before_anything_is_read(library, command, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    assert run([*command, "--db", str(tmp_path / "missing.duckdb")]) == 1
    assert f"needs {library}: install it with `pip install '.[train]'`" in capsys.readouterr().err


def test_query_with_a_model_does_not_import_xgboost(trained):
    asks = (
        "import sys; from kernrec.recommender import Recommender;"
        f"best = Recommender([{str(trained)!r}]).recommend('matmul', 'rtx4090', 'm=900,n=700,k=300').best;"
        "print(best.latency_s.source, sorted({'xgboost', 'sklearn', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "learned []"


def test_40_measurements_adapt_a_model_to_a_new_gpu(trained, tmp_path):
    """The simulated GPU takes 2.6 times the predicted latency. Configs with several stages take 3.9 times."""
    gpu, problem = find_gpu("rtx2080ti"), find_op("matmul").problem(m=1024, n=1024, k=1024)
    (table,) = Recommender([]).context.on(gpu).tables(problem)  # Triton supports no GPU before Ampere
    rows = RankedSpace(Space([table]), [problem], (DEFAULT_POINT,)).kernels[0].rows
    limited = predict(table, table.space.at(problem), rows)
    configs = [table.space.config(int(row)) for row in rows]
    truth = limited.latency_s * [2.6 * (1.5 if config["stages"] > 1 else 1.0) for config in configs]
    chosen = np.random.default_rng(0).choice(len(rows), 40, replace=False)
    usual = next(simulated(1)) | {"gpu": gpu.name, "problem": problem, "energy_j": None}
    rows = [usual | {"config": configs[i], "latency_s": float(truth[i])} for i in chosen]
    own = store_rows(tmp_path / "own.duckdb", rows)
    (tmp_path / "models").symlink_to(trained.parent / "models")
    query = Query(Objective.LATENCY, top=60)
    answer = Recommender([own]).recommend("matmul", gpu.name, problem.dim, query=query)
    by_config = {tuple(config.items()): value for config, value in zip(configs, truth, strict=True)}
    ratios = [
        recommendation.latency_s.value / by_config[tuple(recommendation.config.items())]
        for recommendation in answer.recommendations
        if recommendation.latency_s.source == "learned"
    ]
    (note,) = [note for note in answer.notes if note.startswith("source learned")]
    assert isinstance(note, Note)
    assert "adapted to 40 configs measured on this problem" in note
    assert note.why.endswith("90 % interval from these configs, each held out.")
    assert answer.as_dict()["models"][0]["adapted_to_configs"] == 40
    assert len(ratios) > 20
    assert np.median(np.abs(np.log(ratios))) < 0.02
