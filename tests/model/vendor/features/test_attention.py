"""Test the laws of the lower bound for attention."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.model.vendor.bound import FLASH, Bound, features
from tests.helpers.depth import few_examples

CARDS = st.sampled_from(["a100-sxm4-80gb", "l40s", "h200-sxm", "b200", "rtx4090"])
HEADS = st.sampled_from([(8, 1), (32, 8), (64, 64)])


def attention(card: str, dtype: str = "bf16", **sizes: int) -> tuple[Bound, dict[str, np.ndarray]]:
    whole = {"batch": 1, "head_dim": 128, "window": 0, "kv_dtype": 0, "causal": 1, **sizes}
    dims = {name: np.array([size]) for name, size in whole.items()}
    return features("attention", find_gpu(card), dtype, "bshd", dims, FLASH)


def seconds(card: str, dtype: str = "bf16", **sizes: int) -> float:
    return float(attention(card, dtype, **sizes)[0].total_s[0])


@few_examples(25)
@given(CARDS, HEADS, st.integers(1, 64), st.integers(2, 1 << 15), st.sampled_from([0, 128, 8192]))
def test_features_are_finite_and_time_is_above_the_roofline(card, heads, batch, keys, window):
    for queries in (1, keys):
        bound, columns = attention(
            card, batch=batch, heads=heads[0], kv_heads=heads[1], queries=queries, keys=keys, window=window
        )
        assert all(np.isfinite(column).all() for column in columns.values())
        assert bound.total_s[0] >= max(bound.parts["math"][0], bound.parts["launch"][0])


@few_examples(25)
@given(CARDS, HEADS, st.integers(256, 1 << 14))
def test_window_saves_time_unless_it_holds_all_keys(card, heads, keys):
    for queries in (1, keys):
        sizes = {"batch": 8, "heads": heads[0], "kv_heads": heads[1], "queries": queries, "keys": keys}
        whole = seconds(card, **sizes)
        assert seconds(card, **sizes, window=128) <= whole * 1.0001
        assert seconds(card, **sizes, window=2 * keys) >= whole * 0.9999


@pytest.mark.parametrize("card", ["a100-sxm4-80gb", "h200-sxm"])
def test_keys_and_values_of_8_bits_are_read_in_half_the_time(card):
    sizes = {"batch": 64, "heads": 64, "kv_heads": 64, "queries": 1, "keys": 32768}
    read_s, half_s = (attention(card, **sizes, kv_dtype=kind)[0].parts["dram"][0] for kind in (0, 1))
    assert half_s == pytest.approx(read_s / 2, rel=0.01)
    assert seconds(card, **sizes, kv_dtype=1) < 0.6 * seconds(card, **sizes)


def test_a_long_prompt_takes_four_times_as_long_as_half_of_it():
    long, half = (seconds("h200-sxm", heads=32, kv_heads=8, queries=keys, keys=keys) for keys in (1 << 17, 1 << 16))
    assert long == pytest.approx(4 * half, rel=0.05)
