import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.measure.protocol.measure_config import converged, interval_rank, summarize_latency

SAMPLES = st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=60)


@given(SAMPLES)
def test_median_is_inside_its_interval_and_quantiles_are_ordered(samples):
    s = summarize_latency(samples)
    assert s.latency_q10_s <= s.latency_s <= s.latency_q90_s
    if s.latency_low_s is not None and s.latency_high_s is not None:
        assert min(samples) <= s.latency_low_s <= s.latency_s <= s.latency_high_s <= max(samples)


def test_interval_needs_at_least_five_samples():
    # All of five samples lie on one side of the median with probability 2 / 32, below 10 %; all of four with 2 / 16.
    assert interval_rank(4) is None
    assert interval_rank(5) == 0
    assert interval_rank(10) == 1


@pytest.mark.parametrize("n", [6, 10, 25, 80, 1500])
def test_interval_covers_the_median_as_often_as_stated(n):
    draw = np.random.default_rng(n)
    rank = interval_rank(n)
    assert rank is not None
    below = draw.binomial(n, 0.5, 20_000)  # number of samples below the true median
    covered = np.mean((below > rank) & (below < n - rank))
    assert covered > 0.89


def test_sampling_ends_at_one_percent_of_the_median():
    steady = [1.0, 1.001, 0.999, 1.0, 1.002, 0.998, 1.0, 1.001, 0.999, 1.0]
    assert converged(steady, 0.01, least=10)
    assert not converged(steady[:9], 0.01, least=10)
    assert not converged([], 0.01, least=0)
    assert not converged([1.0, 1.2, 0.8, 1.1, 0.9, 1.0, 1.2, 0.8, 1.1, 0.9], 0.01, least=10)
