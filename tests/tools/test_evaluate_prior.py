"""The figures of the prior on recordings: how they are computed, and what is said where nothing is at hand."""

import json
import sys
from pathlib import Path

import duckdb
import evaluate_prior
import numpy as np
import prior_scores
import pytest
import recorded_sets

from kernrec.kernel import load_kernel

SPECS = sorted(recorded_sets.SPECS.glob("*.toml"))


def test_without_data_everything_is_skipped_by_name(tmp_path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    figures = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["evaluate_prior.py", "--data", str(tmp_path), "--json", str(figures)])
    monkeypatch.setattr(evaluate_prior, "shape_sets", lambda data, skip: iter(()))
    assert evaluate_prior.main() == 0
    skipped = json.loads(figures.read_text())["skipped"]
    for name in ("convolution", "gemm", "textbook"):
        assert any(line.startswith(f"{name}: ") for line in skipped)
    assert "--sources names a folder" in capsys.readouterr().err


def test_an_unknown_set_is_refused_with_the_nearest_one(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, "argv", ["evaluate_prior.py", "--sets", "gem"])
    assert evaluate_prior.main() == 2
    assert "'gem'; did you mean gemm?" in capsys.readouterr().err


def test_a_perfect_prediction_scores_one_and_simple_choices_score_what_they_cost() -> None:
    measured = np.array([4.0, 1.0, 2.0, 8.0, 1.6])
    threads = np.array([256.0, 128.0, 256.0, 32.0, 1024.0])
    occupancy = np.array([0.5, 0.5, 0.5, 0.25, 1.0])
    score = prior_scores.score_space(("set", "card"), 5, measured, measured, (occupancy, threads), (0, 5))
    assert score.rank == pytest.approx(1.0)
    assert (score.error, score.ratio, score.first) == (0.0, 1.0, 1.0)
    assert score.threads_256 == pytest.approx((1 / 4 + 1 / 2) / 2)  # two configs have 256 threads
    assert score.occupancy == pytest.approx(1 / 1.6)
    assert score.random == pytest.approx(np.mean(1.0 / measured))


def test_a_prediction_that_is_off_by_a_factor_keeps_its_rank_and_shows_the_factor() -> None:
    measured = np.array([4.0, 1.0, 2.0])
    score = prior_scores.score_space(("s", "c"), 3, measured, 2.0 * measured, (np.ones(3), np.full(3, 256.0)), (1, 3))
    assert score.rank == pytest.approx(1.0)
    assert score.ratio == pytest.approx(2.0)
    assert score.error == pytest.approx(1.0)
    assert score.first == 1.0


def test_errors_that_go_with_the_blocks_on_an_sm_are_shown_by_their_number() -> None:
    measured, resident = np.array([1.0, 1.0, 2.0, 2.0, 9.0]), np.array([1.0, 1.0, 4.0, 16.0, 1.0])
    predicted = measured * np.array([0.7, 0.9, 1.0, 1.1, 5.0])  # the last is too slow to count
    score = prior_scores.score_by_residents(("s", "c"), measured, predicted, resident)
    by_title = dict(zip(prior_scores.residency_titles(), score.medians, strict=True))
    assert by_title["1"] == (pytest.approx(0.8), 2)
    assert by_title["3 to 4"] == (pytest.approx(1.0), 1)
    assert by_title["8 and more"] == (pytest.approx(1.1), 1)
    assert by_title["2"] == by_title["5 to 7"] == (0.0, 0)


def test_two_recordings_agree_up_to_their_level() -> None:
    first = {str(i): float(i) for i in range(1, 9)}
    same = prior_scores.agreement(("set", "a", "b"), first, {config: 3.0 * time for config, time in first.items()})
    assert same is not None
    assert (same.configs, same.rank, same.error) == (8, pytest.approx(1.0), pytest.approx(0.0))
    reverse = prior_scores.agreement(("set", "a", "b"), first, {config: 1.0 / time for config, time in first.items()})
    assert reverse is not None
    assert reverse.rank == pytest.approx(-1.0)
    assert prior_scores.agreement(("set", "a", "b"), first, {"1": 1.0, "9": 9.0}) is None


def test_only_choices_within_five_percent_of_the_best_count() -> None:
    assert prior_scores.within([1.0, 0.96, 0.94]) == 2


@pytest.mark.parametrize("recorded", recorded_sets.SETS, ids=lambda recorded: recorded.name)
def test_every_set_has_a_spec_that_reads(recorded, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    spec = (recorded_sets.SPECS / f"{recorded.name}.toml").read_text()
    entry = next(line.split('"')[1] for line in spec.splitlines() if line.startswith("entry"))
    (tmp_path / f"{recorded.name}.cu").write_text(f"__global__ void {entry}() {{}}")
    (tmp_path / "kernel.toml").write_text(spec)
    kernel = load_kernel(tmp_path / "kernel.toml")
    assert kernel.sampled
    assert kernel.declares_problem


def test_rows_take_the_first_value_of_a_tunable_that_the_file_lacks(tmp_path: Path) -> None:
    spec = recorded_sets.SPECS / "pnpoly.toml"
    (tmp_path / "pnpoly.cu").write_text("__global__ void cn_pnpoly() {}")
    (tmp_path / "kernel.toml").write_text(spec.read_text())
    kernel = load_kernel(tmp_path / "kernel.toml")
    rows = "SELECT 64 AS BLOCK_SIZE_X, 2 AS tile_size, 1 AS between_method, 0 AS use_method, 0.5 AS latency_s, "
    query = f"{rows} 'ok' AS outcome UNION ALL {rows} 'RuntimeFailedConfig'"
    duckdb.execute(f"COPY ({query}) TO '{tmp_path / 'rows.parquet'}' (FORMAT parquet)")
    recording = recorded_sets.Recording("rtx3090", "rows.parquet", unit_s=2.0)
    recorded = recorded_sets.read_rows(recording, kernel, tmp_path)
    assert recorded.latency_s.tolist() == [1.0]
    assert recorded.configs == [
        {"block_size_x": 64, "tile_size": 2, "between_method": 1, "use_precomputed_slopes": 0, "use_method": 0}
    ]


def test_cards_share_their_sample_and_the_best_of_each_come_last() -> None:
    configs = [{"x": i} for i in range(50)]
    card_rows = recorded_sets.Rows(configs, np.arange(1.0, 51.0))
    other = recorded_sets.Rows(configs[:45], np.arange(45.0, 0.0, -1.0))
    first = [configs[i]["x"] for i in evaluate_prior.sample(card_rows, 45, 2)][:45]
    second = [configs[i]["x"] for i in evaluate_prior.sample(other, 45, 2)][:45]
    assert [x for x in first if x < 45] == [x for x in second if x in first]
    assert evaluate_prior.sample(card_rows, 5, 2)[-2:] == [0, 1]
    assert evaluate_prior.sample(other, 5, 2)[-2:] == [44, 43]
