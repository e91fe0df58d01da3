"""Intervals of recorded rows: from repeats, from later versions without their drift, and from neighbors."""

import numpy as np
import pytest
from evidence.recordings.spread import ENOUGH, LEAST, Spread, coverage, interval, neighbors, power_width

ROW = {
    "source": "s", "stack": "vLLM", "dtype": "bf16", "gpu": "l40s", "variant": "", "layout": "nt", "kernel": "",
    "n": 4096, "k": 4096, "m": 1, "latency_s": 1e-5, "power_w": None,
}  # fmt: skip


def test_interval_is_at_least_three_percent_on_each_side():
    assert interval(np.zeros(0)) == pytest.approx((1 / (1 + LEAST), 1 + LEAST))
    assert interval(np.linspace(-0.2, 0.1, 1001)) == pytest.approx((np.exp(-0.185), np.exp(0.085)))


def test_drift_between_versions_is_excluded_from_the_interval():
    spread, noise = Spread(), np.random.default_rng(0).normal(0, 0.05, 2000)
    for m, error in enumerate(noise):
        spread.add_later(ROW | {"m": m}, 0.57e-5 * np.exp(error))
    spread.remove_drift()
    low, high = np.log(interval(spread.factors("s", "vLLM", "bf16", "l40s")))
    assert (-low, high) == pytest.approx((1.645 * 0.05, 1.645 * 0.05), rel=0.1)
    assert coverage(spread, "s")["problems held out"] == pytest.approx(0.9, abs=0.03)


def test_too_few_repeats_use_the_spread_of_the_backend_or_recorder():
    spread = Spread()
    for gpu, stack, factor in (("a100", "vLLM", 1.1), ("h100", "SGLang", 1.2)):
        for _ in range(ENOUGH):
            spread.add(ROW | {"gpu": gpu, "stack": stack}, factor * 1e-5)
    assert spread.factors("s", "vLLM", "bf16", "l40s").max() == pytest.approx(np.log(1.1))
    assert spread.factors("s", "TensorRT-LLM", "bf16", "l40s").max() == pytest.approx(np.log(1.2))
    assert not len(spread.factors("another", "vLLM", "bf16", "l40s"))


def test_neighbors_are_compared_in_proportion_to_their_work():
    sizes = np.arange(1000, 1200)
    rows = [ROW | {"m": int(m), "latency_s": 1e-9 * m * (1.1 if m % 2 else 1.0)} for m in sizes]
    factors = neighbors(rows, ["m"], lambda row: 1e-9 * row["m"])
    assert np.abs(factors) == pytest.approx(np.log(1.1) / np.sqrt(2), rel=1e-6)


def test_power_is_compared_between_equally_fast_neighbors():
    rows = [ROW | {"m": m, "power_w": 400.0 if m % 2 else 480.0} for m in range(2 * ENOUGH)]
    assert power_width(rows, ["m", "n", "k"]) == pytest.approx(np.log(1.2))
    assert power_width([], ["m"]) == pytest.approx(0.05)
