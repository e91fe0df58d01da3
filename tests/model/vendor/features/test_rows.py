"""Test the laws of the lower bounds for operators over rows and elements."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.model.vendor.bound import FLASH, features
from tests.helpers.depth import few_examples

CARDS = st.sampled_from(["a100-pcie-40gb", "t4", "h200-sxm"])


def seconds(op: str, card: str, **sizes: int) -> float:
    bound, columns = features(op, find_gpu(card), "f32", "row", {k: np.array([v]) for k, v in sizes.items()}, FLASH)
    assert all(np.isfinite(column).all() for column in columns.values())
    assert bound.total_s[0] >= bound.parts["launch"][0] > 0
    return float(bound.total_s[0])


@few_examples(25)
@given(CARDS, st.sampled_from(["softmax", "layernorm"]), st.integers(1, 1 << 15), st.integers(1, 8192))
def test_twice_the_rows_take_no_less_time(card, op, rows, columns):
    assert seconds(op, card, rows=2 * rows, columns=columns) >= 0.999 * seconds(op, card, rows=rows, columns=columns)


@pytest.mark.parametrize("card", ["a100-pcie-40gb", "t4"])
def test_large_sum_of_two_tensors_moves_three_at_the_dram_rate(card):
    n = 1 << 30
    assert seconds("elementwise", card, n=n) == pytest.approx(
        12 * n / (0.8 * find_gpu(card).memory_bandwidth), rel=0.05
    )
