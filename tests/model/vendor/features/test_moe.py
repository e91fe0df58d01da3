"""Test the laws of the lower bound for mixtures of experts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.model.vendor.bound import FLASH, Bound, features
from tests.helpers.depth import few_examples

CARDS = st.sampled_from(["a100-sxm4-80gb", "l40s", "h200-sxm", "b200"])
NETWORK = {"hidden": 4096, "intermediate": 1536, "experts": 128, "topk": 8, "tp": 1, "ep": 1, "routing": 0, "gated": 1}


def experts(card: str, dtype: str = "bf16", **sizes: int) -> tuple[Bound, dict[str, np.ndarray]]:
    dims = {name: np.array([size]) for name, size in (NETWORK | sizes).items()}
    return features("moe", find_gpu(card), dtype, "row", dims, FLASH)


def seconds(card: str, dtype: str = "bf16", **sizes: int) -> float:
    return float(experts(card, dtype, **sizes)[0].total_s[0])


@few_examples(25)
@given(CARDS, st.integers(1, 1 << 17), st.sampled_from([1, 2, 128]), st.sampled_from([0, 100, 101, 120]))
def test_features_are_finite_and_time_is_above_the_roofline(card, tokens, ep, routing):
    bound, columns = experts(card, tokens=tokens, ep=ep, routing=routing)
    assert all(np.isfinite(column).all() for column in columns.values())
    assert bound.total_s[0] >= max(bound.parts["math"][0], bound.parts["launch"][0])


@few_examples(25)
@given(CARDS, st.integers(1, 1 << 16), st.sampled_from([0, 101, 120]))
def test_twice_the_tokens_take_no_less_time(card, tokens, routing):
    assert seconds(card, tokens=2 * tokens, routing=routing) >= 0.999 * seconds(card, tokens=tokens, routing=routing)


def test_one_token_reads_only_the_weights_of_its_experts():
    per_expert = 3 * NETWORK["hidden"] * NETWORK["intermediate"] * 2
    read_s = experts("h200-sxm", tokens=1)[0].parts["dram"][0]
    assert read_s == pytest.approx(NETWORK["topk"] * per_expert / find_gpu("h200-sxm").memory_bandwidth, rel=0.02)
    all_s = experts("h200-sxm", tokens=4096)[0].parts["dram"][0]
    assert all_s >= NETWORK["experts"] * per_expert / find_gpu("h200-sxm").memory_bandwidth


def test_weights_of_4_bits_are_read_in_about_a_fourth_of_the_time():
    half, small = (experts("b200", dtype, tokens=256)[0].parts["dram"][0] for dtype in ("bf16", "w4a16"))
    assert small == pytest.approx(half / 4, rel=0.1)


def test_uneven_routing_gives_the_busiest_card_more_work():
    even, uneven = (experts("h200-sxm", tokens=8192, ep=8, routing=power)[0].parts["math"][0] for power in (0, 120))
    assert uneven > 1.2 * even
