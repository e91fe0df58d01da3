"""The prior and the learner on recorded spaces of real GPUs, where the folder of recorded data is at hand."""

import importlib.util
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kernrec.errors import KernrecError
from kernrec.model import features, scores
from kernrec.model.adapt import adapt
from kernrec.model.calibrate import fit
from kernrec.model.dataset import Group

ROOT = Path(__file__).parents[2]
SPACES = ROOT.parent / "shared" / "data" / "spaces"

needs_spaces = pytest.mark.skipif(
    not (SPACES / "convolution-static-a100-a4000.parquet").is_file(),
    reason="needs the recorded spaces in ../shared/data",
)


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recorded():  # type: ignore[no-untyped-def]
    return tool("recorded_convolution").load(SPACES)


@needs_spaces
@pytest.mark.parametrize(("gpu", "first_percent"), [("a100", 1.5), ("a4000", 1.01)])
def test_the_prior_alone_ranks_a_kernel_it_was_not_made_for(recorded, gpu: str, first_percent: float) -> None:  # type: ignore[no-untyped-def]
    space = recorded[gpu]
    predicted = space.settled.latency_s
    assert len(space) == 4201
    assert scores.rank_correlation(predicted, space.time_s) >= 0.90
    order = scores.order_of(predicted)
    assert 1.0 / scores.efficiency_at(space.time_s, order, len(space) // 100) <= first_percent


@needs_spaces
@pytest.mark.parametrize(("gpu", "error"), [("a100", 0.10), ("a4000", 0.08)])
def test_one_percent_of_a_space_tells_of_the_rest(recorded, gpu: str, error: float) -> None:  # type: ignore[no-untyped-def]
    space = recorded[gpu]
    matrix = features.matrix(space.facts, features.names(tuple(sorted(space.facts.tunables)))).astype(np.float64)
    prior = space.settled.latency_s
    found = []
    for seed in range(5):
        chosen = np.random.default_rng(seed).permutation(len(space))
        seen, rest = chosen[:42], chosen[42:]
        correction = adapt(matrix[seen], np.log(space.time_s[seen] / prior[seen]))
        predicted, measured = prior[rest] * np.exp(correction.correction(matrix[rest])), space.time_s[rest]
        covered = scores.coverage(measured, *correction.interval.around(predicted))
        found.append((scores.rank_correlation(predicted, measured), scores.median_error(measured, predicted), covered))
    rank, median_error, covered = np.mean(found, axis=0)
    assert rank >= 0.90
    assert median_error <= error
    assert 0.86 <= covered <= 0.96


def test_without_the_recordings_the_evaluation_says_so_and_succeeds(tmp_path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.setattr(sys, "argv", ["evaluate_spaces.py", "--data", str(tmp_path)])
    assert tool("evaluate_spaces").main() == 0
    assert "nothing evaluated" in capsys.readouterr().out


@needs_spaces
@pytest.mark.parametrize("gpu", ["a100", "a4000"])
def test_coefficients_fitted_to_parts_of_a_space_hold_on_the_others(recorded, gpu: str) -> None:  # type: ignore[no-untyped-def]
    """A recording is one problem, too few to calibrate; configs of equal tile width stand in for problems here."""
    space = recorded[gpu]
    widths, unknown = space.facts.tunables["tile_size_x"], np.full(len(space.time_s), np.nan)
    whole = Group(space.gpu.name, "recorded", "convolution", "kernel_tuner", "", space.facts, space.time_s, unknown)
    with pytest.raises(KernrecError, match="2 problems, 0 configs are missing"):
        fit([whole])
    found = {}
    for wrong in (0.4, 0.5):  # the prior with its core made so much faster than it is
        groups = []
        for width in np.unique(widths):
            rows = np.flatnonzero(widths == width)
            facts = {f.name: _of(getattr(space.facts, f.name), rows) for f in fields(space.facts)}
            facts["core_s"] = facts["core_s"] * wrong
            part = replace(whole, problem=f"width {width}", facts=replace(space.facts, **facts))
            groups.append(replace(part, latency_s=space.time_s[rows], energy_j=unknown[rows]))
        (one,) = fit(groups)
        assert one.calibration is not None
        assert one.calibration.time_factor[0] > 1.4 > 1.3 > one.calibration.time_factor[1]
        found[wrong] = one.calibration.core_time
    assert found[0.4] / found[0.5] == pytest.approx(0.5 / 0.4, rel=0.03)


def _of(value: Any, rows: np.ndarray) -> Any:
    """These configs' part of a fact."""
    if isinstance(value, dict):
        return {name: column[rows] for name, column in value.items()}
    return value[..., rows] if isinstance(value, np.ndarray) else value
