"""What is claimed of the clock of the recorded A100, where the folder of recorded data is at hand."""

import numpy as np
import pytest
from evidence.recordings import clock

from tests.helpers.paths import SPACES


def launches(first_ms: float, last_ms: float, count: int = 32) -> np.ndarray:
    return np.where(np.arange(count) < count // 2, first_ms, last_ms) / 1e3


def test_only_configs_after_long_configs_are_marked():
    steady, long = launches(1.0, 1.0), launches(5.0, 5.0)
    recording = clock.ClockRecording(
        [{}] * 4, np.array([10.0, 11.0, 12.2, 15.0]), np.stack([steady, long, steady, steady])
    )
    assert clock.raised(recording).tolist() == [False, False, True, False]


def test_config_whose_launches_change_is_marked():
    recording = clock.ClockRecording(
        [{}] * 2, np.array([10.0, 20.0]), np.stack([launches(1.8, 1.0), launches(1.0, 1.0)])
    )
    assert clock.raised(recording).tolist() == [True, False]


@pytest.mark.skipif(
    not (SPACES / "convolution-a100.t4.json.gz").is_file(), reason="needs the recorded spaces in ../shared/data"
)
def test_recorded_needle_launches_at_a_raised_clock():
    """Each step is no larger than boost over base clock allows."""
    recording = clock.read(SPACES / clock.FILE)
    up = np.flatnonzero(recording.step > 1.25)
    assert len(up) > 100
    assert recording.step.max() <= 1410 / 765 * 1.01
    marked = clock.raised(recording)
    assert 0.1 < marked.mean() < 0.2
    assert marked[np.argsort(recording.launches_s.mean(axis=1))[:35]].all()
