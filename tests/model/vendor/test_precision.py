"""Test the bytes and rates that backends' kernels have for each data type."""

import pytest

from kernrec.gpu import find_gpu
from kernrec.model.vendor.precision import precision_of, rate_of


@pytest.mark.parametrize(
    ("dtype", "less"), [("f8e4m3", "bf16"), ("w8a16", "bf16"), ("w4a16", "w8a16"), ("nvfp4", "f8e4m3")]
)
def test_fewer_bits_are_fewer_bytes_of_weights(dtype, less):
    assert precision_of(dtype).b_bytes < precision_of(less).b_bytes


def test_activations_that_the_call_quantizes_are_read_in_16_bits_and_written():
    assert precision_of("f8e4m3").quantising_bytes == 3.0
    assert precision_of("w4a16").quantising_bytes == precision_of("bf16").quantising_bytes == 0.0
    assert precision_of("nvfp4").quantising_bytes == 2.0 + precision_of("nvfp4").a_bytes


def test_a_card_without_the_arithmetic_has_no_rate():
    assert rate_of(find_gpu("a100"), "f8e4m3") == 0
    assert rate_of(find_gpu("h100"), "nvfp4") == 0
    assert rate_of(find_gpu("b200"), "nvfp4") == pytest.approx(2 * rate_of(find_gpu("b200"), "f8block"), rel=0.01)
    assert rate_of(find_gpu("a100"), "w4a16") == rate_of(find_gpu("a100"), "bf16") > 0
