"""The search beside Kernel Tuner's: kernrec's half, where the folder of recorded data is at hand."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_kernel_tuner import main, predictions, read, searched
from on_gpu import NoGPUError, find_card
from recorded_convolution import GPUS, load

from tests.helpers.paths import SPACES

needs_spaces = pytest.mark.skipif(not SPACES.is_dir(), reason="needs the recorded spaces in ../shared/data")


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """The recorded spaces by GPU."""
    return load(SPACES)


def test_without_the_recordings_it_says_so_and_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare_kernel_tuner.py", "--data", str(tmp_path)])
    assert main() == 0
    assert "nothing compared" in capsys.readouterr().out


def test_throughput_without_a_gpu_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        find_card()
    except NoGPUError:
        monkeypatch.setattr(sys, "argv", ["compare_kernel_tuner.py", "--throughput", "10"])
        assert main() == 1
        assert capsys.readouterr().out.startswith("needs a GPU: ")
    else:
        pytest.skip("there is a GPU here")


@pytest.mark.slow
@needs_spaces
def test_a_twentieth_of_a_recorded_space_is_enough_for_one_of_its_five_best(recorded: dict[str, Any]) -> None:
    space = read(SPACES / "convolution-a100.t4.json.gz")
    prior, trained = predictions(space, recorded, "a100")
    assert np.isfinite(prior).mean() > 0.99
    for predicted in (prior, trained):
        best, _ = searched(space, predicted, 1)
        assert best[-1] <= 1.13


@pytest.mark.slow
@needs_spaces
def test_a_prior_that_is_right_is_followed_at_once(recorded: dict[str, Any]) -> None:
    assert set(recorded) == set(GPUS)
    space = read(SPACES / "convolution-a4000.t4.json.gz")
    for predicted in predictions(space, recorded, "a4000"):
        best, _ = searched(space, predicted, 1)
        assert best[0] <= 1.02
