"""The prior and the learner on recorded spaces of real GPUs, where the folder of recorded data is at hand."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from evidence.recordings import convolution as recorded_convolution
from evidence.recordings.clock import FILE, config_key, raised_configs

from kernrec.errors import KernrecError
from kernrec.model.learn import features
from kernrec.model.learn.adaptation import adapt
from kernrec.training import scores
from kernrec.training.boosting import TrainingSettings
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
    per_card = [_after(42, seed, matrix, space.time_s, space.limited.latency_s) for seed in range(5)]
    rank, median_error, covered = np.mean(per_card, axis=0)
    assert rank >= 0.90
    assert median_error <= error
    assert 0.86 <= covered <= 0.96


@needs_spaces
def test_at_one_clock_another_gpu_tells_where_the_best_configs_are(recorded) -> None:  # type: ignore[no-untyped-def]
    """Rank, error, and the best of the first 1 %, on the A100, trained on the A4000; and the prior alone."""
    pytest.importorskip("xgboost")
    whole, raised = recorded["a100"], raised_configs(SPACES / FILE, recorded_convolution.TUNABLES)
    configs = zip(*(whole.inputs.tunables[name].tolist() for name in recorded_convolution.TUNABLES), strict=True)
    steady = np.array(
        [config_key(dict(zip(recorded_convolution.TUNABLES, config, strict=True))) not in raised for config in configs]
    )
    assert 0.8 < steady.mean() < 0.9
    space = _group(whole, np.flatnonzero(steady), 1.0)
    measured, prior = space.latency_s, space.inputs.latency_s
    assert measured.min() > 1.4 * whole.time_s.min()
    percent = len(measured) // 100
    assert 1.0 / scores.efficiency_at(measured, scores.order_of(prior), percent) <= 1.05
    a4000 = _group(recorded["a4000"], np.arange(len(recorded["a4000"])), 1.0)
    model = train(Dataset((a4000,)), TrainingSettings(threads=1))
    predicted = prior * np.exp(model.log_ratio(model.rows(space.inputs))[0]["latency"])
    order = scores.order_of(predicted)
    assert scores.rank_correlation(predicted, measured) >= 0.92
    assert 1.0 / scores.efficiency_at(measured, order, percent) <= 1.05
    assert scores.reduction(measured, order) >= 0.99
    assert scores.median_error(measured, predicted) <= 0.15
    matrix = features.matrix(space.inputs, features.names(tuple(sorted(space.inputs.tunables)))).astype(np.float64)
    few = [_after(round(0.05 * len(measured)), seed, matrix, measured, prior) for seed in range(2)]
    rank, error, _ = np.mean(few, axis=0)
    assert rank >= 0.96
    assert error <= 0.045


def _after(
    count: int, seed: int, matrix: np.ndarray, measured: np.ndarray, prior: np.ndarray
) -> tuple[float, float, float]:
    """Rank correlation, median error and coverage on the rest after `count` random configs were measured."""
    chosen = np.random.default_rng(seed).permutation(len(measured))
    seen, rest = chosen[:count], chosen[count:]
    correction = adapt(matrix[seen], np.log(measured[seen] / prior[seen]))
    predicted, others = prior[rest] * np.exp(correction.correction(matrix[rest])), measured[rest]
    covered = scores.coverage(others, *correction.interval.around(predicted))
    return scores.rank_correlation(predicted, others), scores.median_error(others, predicted), covered


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
