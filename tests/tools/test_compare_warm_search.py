"""Searches that begin with the prior: which configs of a recorded space are those that were profiled."""

import sys
from pathlib import Path

import numpy as np
import pytest
from compare_kernel_tuner import COUNTS, Space, search
from compare_warm_search import Warm, main


@pytest.mark.parametrize("options", [[], ["--sources", "sources"]])
def test_without_recordings_or_sources_it_says_so_and_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare_warm_search.py", "--data", str(tmp_path), *options])
    assert main() == 0
    assert "nothing compared" in capsys.readouterr().out


def test_the_part_that_was_profiled_keeps_times_and_predictions_together() -> None:
    count = max(COUNTS) + 50
    tunables = np.arange(count, dtype=float)[:, None]
    space = Space("made up", ("size",), tunables, tunables[:, 0] + 1.0, np.zeros(count))
    predicted_s = np.where(np.arange(count) % 5 == 0, tunables[:, 0] + 2.0, np.nan)
    few = Warm(space, predicted_s).profiled
    assert np.array_equal(few.predicted_s, few.space.time_s + 1.0)
    assert few.space.tunables[:, 0].tolist() == list(range(0, count, 5))
    # A search of fewer configs than the last count ends when all are measured.
    assert sorted(search(few.space, few.predicted_s, 0)) == list(range(count // 5))
