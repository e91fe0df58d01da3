"""What the prior alone says of recorded spaces, over configs that ran at one clock; needs the recordings."""

import numpy as np
import pytest
from evidence.recordings import convolution as recorded_convolution
from evidence.recordings.clock import FILE, config_key, raised_configs

from kernrec.training import scores
from tests.helpers.paths import SPACES

pytestmark = pytest.mark.skipif(
    not (SPACES / "convolution-static-a100-a4000.parquet").is_file(),
    reason="needs the recorded spaces in ../shared/data",
)


@pytest.fixture(scope="module")
def recorded():  # type: ignore[no-untyped-def]
    return recorded_convolution.load(SPACES)


def steady(recorded, gpu: str) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Which configs ran at one clock; on the RTX A4000 all."""
    if gpu != "a100":
        return np.ones(len(recorded[gpu]), dtype=bool)
    columns, names = recorded[gpu].columns, recorded_convolution.TUNABLES
    raised = raised_configs(SPACES / FILE, names)
    rows = np.stack([columns[name] for name in names], axis=1).astype(int).tolist()
    return np.array([config_key(dict(zip(names, row, strict=True))) not in raised for row in rows])


@pytest.mark.parametrize("gpu", ["a100", "a4000"])
def test_the_prior_alone_finds_the_best_and_says_how_long_it_takes(recorded, gpu: str) -> None:  # type: ignore[no-untyped-def]
    rows = steady(recorded, gpu)
    measured, predicted = recorded[gpu].time_s[rows], recorded[gpu].limited.latency_s[rows]
    assert len(measured) > 3000
    assert scores.rank_correlation(predicted, measured) >= 0.94
    assert 1.0 / scores.efficiency_at(measured, scores.order_of(predicted), 10) <= 1.05
    assert scores.median_error(measured, predicted) <= 0.11


@pytest.mark.parametrize("gpu", ["a100", "a4000"])
def test_shared_memory_is_judged_as_is_none(recorded, gpu: str) -> None:  # type: ignore[no-untyped-def]
    """The prior once misjudged kernels with shared memory against those without."""
    rows = steady(recorded, gpu)
    off = np.log(recorded[gpu].time_s / recorded[gpu].limited.latency_s)
    shared = recorded[gpu].columns["use_shmem"] == 1
    assert abs(np.median(off[rows & shared]) - np.median(off[rows & ~shared])) <= 0.1


def test_a_row_of_words_passes_l1_at_once_and_two_rows_collide() -> None:
    wavefronts = recorded_convolution._conflicts
    assert wavefronts(32, 4) == wavefronts(64, 2) == 1.0
    assert wavefronts(16, 4) == 2.0
    assert wavefronts(16, 1) == 1.0
    assert 1.0 < wavefronts(48, 2) < 2.0
