"""The prior and the learner on recorded spaces of real GPUs, where the folder of recorded data is at hand."""

import sys
from dataclasses import fields, replace
from typing import Any

import evaluate_spaces
import numpy as np
import pytest
import recorded_convolution

from kernrec.errors import KernrecError
from kernrec.model.learn import features
from kernrec.model.learn.adaptation import adapt
from kernrec.training import scores
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.fit_calibration import fit
from kernrec.training.train_model import train
from tests.helpers.paths import SPACES

needs_spaces = pytest.mark.skipif(
    not (SPACES / "convolution-static-a100-a4000.parquet").is_file(),
    reason="needs the recorded spaces in ../shared/data",
)


@pytest.fixture(scope="module")
def recorded():  # type: ignore[no-untyped-def]
    return recorded_convolution.load(SPACES)


@needs_spaces
@pytest.mark.parametrize(("gpu", "first_percent"), [("a100", 1.5), ("a4000", 1.01)])
def test_the_prior_alone_ranks_a_kernel_it_was_not_made_for(recorded, gpu: str, first_percent: float) -> None:  # type: ignore[no-untyped-def]
    space = recorded[gpu]
    predicted = space.limited.latency_s
    assert len(space) == 4201
    assert scores.rank_correlation(predicted, space.time_s) >= 0.93
    order = scores.order_of(predicted)
    assert 1.0 / scores.efficiency_at(space.time_s, order, len(space) // 100) <= first_percent


@needs_spaces
@pytest.mark.parametrize(("gpu", "error"), [("a100", 0.10), ("a4000", 0.08)])
def test_one_percent_of_a_space_tells_of_the_rest(recorded, gpu: str, error: float) -> None:  # type: ignore[no-untyped-def]
    space = recorded[gpu]
    matrix = features.matrix(space.inputs, features.names(tuple(sorted(space.inputs.tunables)))).astype(np.float64)
    prior = space.limited.latency_s
    per_card = []
    for seed in range(5):
        chosen = np.random.default_rng(seed).permutation(len(space))
        seen, rest = chosen[:42], chosen[42:]
        correction = adapt(matrix[seen], np.log(space.time_s[seen] / prior[seen]))
        predicted, measured = prior[rest] * np.exp(correction.correction(matrix[rest])), space.time_s[rest]
        covered = scores.coverage(measured, *correction.interval.around(predicted))
        per_card.append(
            (scores.rank_correlation(predicted, measured), scores.median_error(measured, predicted), covered)
        )
    rank, median_error, covered = np.mean(per_card, axis=0)
    assert rank >= 0.90
    assert median_error <= error
    assert 0.86 <= covered <= 0.96


@needs_spaces
def test_at_one_clock_another_gpu_tells_where_the_best_configs_are() -> None:
    """Rank, error, and the best of the first 1 %, on the A100, trained on the A4000; and the prior alone."""
    pytest.importorskip("xgboost")
    recorded = {
        name: evaluate_spaces.Space(name, r.inputs, r.time_s) for name, r in evaluate_spaces.load(SPACES).items()
    }
    whole = recorded["a100"]
    space = whole.take(np.flatnonzero(evaluate_spaces.at_one_clock(whole, SPACES)))
    assert 0.8 < len(space) / len(whole) < 0.9
    assert space.time_s.min() > 1.4 * whole.time_s.min()
    assert evaluate_spaces.prior_scores(space)["top-1 %"] <= 1.05
    judged = evaluate_spaces.judge(
        space.time_s,
        evaluate_spaces.expected(train(Dataset((recorded["a4000"].group,)), evaluate_spaces.ONE_THREAD), space),
    )
    assert judged["rank"] >= 0.92
    assert judged["top-1 %"] <= 1.05
    assert judged["reduction"] >= 0.99
    assert judged["error"] <= 0.15
    measured = evaluate_spaces.few(space, round(0.05 * len(space)), 2)
    assert measured["rank"] >= 0.96
    assert measured["error"] <= 0.045


def test_without_the_recordings_the_evaluation_says_so_and_succeeds(tmp_path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, "argv", ["evaluate_spaces.py", "--data", str(tmp_path)])
    assert evaluate_spaces.main() == 0
    assert "nothing evaluated" in capsys.readouterr().out


@needs_spaces
@pytest.mark.parametrize("gpu", ["a100", "a4000"])
def test_coefficients_fitted_to_parts_of_a_space_hold_on_the_others(recorded, gpu: str) -> None:  # type: ignore[no-untyped-def]
    """A recording is one problem, too few to calibrate; configs of equal tile width stand in for problems here."""
    space = recorded[gpu]
    with pytest.raises(KernrecError, match="2 problems, 0 configs are missing"):
        fit([_group(space, np.arange(len(space.time_s)), 1.0)])
    widths = space.inputs.tunables["tile_size_x"]
    parts = [np.flatnonzero(widths == width) for width in np.unique(widths)]
    (as_recorded,) = fit([_group(space, rows, 1.0) for rows in parts])
    if as_recorded.calibration is not None:  # the data sheet's coefficients are nearly as good
        before, after = as_recorded.calibration.time_factor
        assert before - after < 0.03
    (slowed,) = fit([_group(space, rows, 1.5) for rows in parts])
    assert slowed.calibration is not None
    off, off_calibrated = slowed.calibration.time_factor
    assert off > 1.5
    assert off_calibrated < 1.1


def _group(space: Any, rows: np.ndarray, slower: float) -> RowGroup:
    """These configs of a recording, on a card that takes so many times as long."""
    inputs = replace(space.inputs, **{f.name: _of(getattr(space.inputs, f.name), rows) for f in fields(space.inputs)})
    unknown = np.full(len(rows), np.nan)
    problem = f"recorded {rows[0]}"
    return RowGroup(
        space.gpu.name, problem, "convolution", "kernel_tuner", "", inputs, slower * space.time_s[rows], unknown
    )


def _of(value: Any, rows: np.ndarray) -> Any:
    """These configs' part of a fact."""
    if isinstance(value, dict):
        return {name: column[rows] for name, column in value.items()}
    return value[..., rows] if isinstance(value, np.ndarray) else value
