"""Test the laws of the lower bound for cuDNN's convolutions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.model.vendor.bound import FLASH, Bound, features
from kernrec.model.vendor.features.conv2d import CASES
from kernrec.op import find_op
from tests.helpers.depth import few_examples


def convolution(card: str, **sizes: int) -> tuple[Bound, dict[str, np.ndarray]]:
    return features("conv2d", find_gpu(card), "f32", "nchw", {k: np.array([v]) for k, v in sizes.items()}, FLASH)


@few_examples(25)
@given(
    st.sampled_from(["a100-pcie-80gb", "t4", "rtx4090"]), st.integers(1, 64), st.integers(3, 2048),
    st.integers(3, 2048), st.integers(5, 252),
)  # fmt: skip
def test_features_are_finite_and_time_is_above_the_roofline(card, n, c, k, h):
    bound, columns = convolution(card, n=n, c=c, k=k, h=h, w=h)
    assert all(np.isfinite(column).all() for column in columns.values())
    assert bound.total_s[0] >= max(bound.parts["math"][0], bound.parts["launch"][0])


def test_a_large_convolution_is_faster_than_its_multiplications_for_winograd_saves_some():
    card = find_gpu("a100-pcie-80gb")
    bound, _ = convolution("a100-pcie-80gb", n=64, c=512, k=512, h=56, w=56)
    direct_s = 2 * 64 * 56 * 56 * 512 * 512 * 9 / card.peak_flops("f32")
    assert direct_s / 4 < bound.total_s[0] < direct_s


@pytest.mark.parametrize("other", [{"r": 1, "s": 1}, {"stride": 2}, {"groups": 2}, {"dilation": 2}])
def test_only_3x3_filters_have_a_baseline(other):
    sizes = {"c": 64, "h": 56, "w": 56, "k": 64, "padding": 1}
    assert CASES["3x3"](find_op("conv2d").problem("f32", **sizes).sizes)
    assert not CASES["3x3"](find_op("conv2d").problem("f32", **sizes, **other).sizes)
