"""Test the laws of the lower bound for backends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.model.baselines.bound import FLUSHED, GRAPH, Timing, features, precision_of, rate_of
from tests.helpers.depth import few_examples

SIZE = st.integers(1, 1 << 14)
GPUS = st.sampled_from(["a100-sxm4-80gb", "l40s", "h200-sxm", "rtx4090", "t4"])


def product_s(gpu: str, m: int, n: int, k: int, dtype: str = "f16", timing: Timing = GRAPH) -> float:
    dims = {name: np.array([size]) for name, size in (("batch", 1), ("m", m), ("n", n), ("k", k))}
    return float(features("matmul", find_gpu(gpu), dtype, "nt", dims, timing)[0].total_s[0])


@few_examples(25)
@given(GPUS, SIZE, SIZE, SIZE)
def test_matmul_takes_at_least_its_launch_and_its_operations(gpu, m, n, k):
    device = find_gpu(gpu)
    least = max(GRAPH.launch_clk / device.boost_clock_hz, 2 * m * n * k / device.peak_flops("f16", tensor=True))
    assert product_s(gpu, m, n, k) >= least


@few_examples(25)
@given(GPUS, SIZE, SIZE, SIZE)
def test_flush_of_l2_takes_time(gpu, m, n, k):
    flushed = Timing(GRAPH.launch_clk, np.inf)
    assert product_s(gpu, m, n, k, timing=flushed) >= product_s(gpu, m, n, k)


def test_large_matmul_is_bound_by_tensor_cores_in_f16_and_by_fma_in_f32():
    half, single = (product_s("a100", 8192, 8192, 8192, dtype, FLUSHED) for dtype in ("f16", "f32"))
    assert half == pytest.approx(2 * 8192**3 / (0.79 * 312e12), rel=0.1)
    assert single == pytest.approx(2 * 8192**3 / (0.85 * 19.5e12), rel=0.1)


def test_batched_f32_matmuls_use_the_tiles_of_the_generation_and_the_l4_a_lower_clock():
    square = {"batch": 64, "m": 96, "n": 96, "k": 512}
    dims = {name: np.array([size]) for name, size in square.items()}
    times = {gpu: features("matmul", find_gpu(gpu), "f32", "nn", dims, GRAPH)[0].total_s[0] for gpu in ("a100", "v100")}
    assert times["a100"] > times["v100"]  # A100: half-empty tiles of 128 x 128; V100: 64 x 64
    share = {
        gpu: product_s(gpu, 8192, 8192, 8192, "f32", GRAPH) * find_gpu(gpu).peak_flops("f32") for gpu in ("l4", "a100")
    }
    assert share["l4"] > 1.5 * share["a100"]


@pytest.mark.parametrize(
    ("dtype", "less"), [("f8e4m3", "bf16"), ("w8a16", "bf16"), ("w4a16", "w8a16"), ("nvfp4", "f8e4m3")]
)
def test_weights_of_fewer_bits_take_fewer_bytes(dtype, less):
    assert precision_of(dtype).b_bytes < precision_of(less).b_bytes


def test_activations_that_the_call_quantizes_are_read_in_16_bits_and_written():
    assert precision_of("f8e4m3").quantising_bytes == 3.0
    assert precision_of("w4a16").quantising_bytes == precision_of("bf16").quantising_bytes == 0.0
    assert precision_of("nvfp4").quantising_bytes == 2.0 + precision_of("nvfp4").a_bytes


def test_gpu_without_the_arithmetic_has_no_rate():
    assert rate_of(find_gpu("a100"), "f8e4m3") == 0
    assert rate_of(find_gpu("h100"), "nvfp4") == 0
    assert rate_of(find_gpu("b200"), "nvfp4") == pytest.approx(2 * rate_of(find_gpu("b200"), "f8block"), rel=0.01)
    assert rate_of(find_gpu("a100"), "w4a16") == rate_of(find_gpu("a100"), "bf16") > 0
