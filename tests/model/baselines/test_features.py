"""Test the laws of the lower bounds for all ops with baselines."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.model.baselines.bound import FLASH, FLUSHED, GRAPH, Bound, Timing, features, precision_of, rate_of
from kernrec.model.baselines.features.conv2d import CASES
from kernrec.op import find_op
from tests.helpers.depth import few_examples

GPUS = st.sampled_from(["a100-sxm4-80gb", "l40s", "h200-sxm", "b200", "rtx4090"])
HEADS = st.sampled_from([(8, 1), (32, 8), (64, 64)])
NETWORK = {"hidden": 4096, "intermediate": 1536, "experts": 128, "topk": 8, "tp": 1, "ep": 1, "routing": 0, "gated": 1}


def bound_of(op: str, gpu: str, dtype: str, layout: str, sizes: dict[str, int]) -> Bound:
    """Return the roofline time of a problem. Check the time, and that all features are finite."""
    dims = {name: np.array([size]) for name, size in sizes.items()}
    bound, columns = features(op, find_gpu(gpu), dtype, layout, dims, FLASH)
    assert all(np.isfinite(column).all() for column in columns.values())
    assert bound.total_s[0] >= max(bound.parts["math"][0], bound.parts["launch"][0]) > 0
    return bound


def attention(gpu: str, **sizes: int) -> Bound:
    whole = {"batch": 1, "head_dim": 128, "window": 0, "kv_dtype": 0, "causal": 1, **sizes}
    return bound_of("attention", gpu, "bf16", "bshd", whole)


def experts(gpu: str, dtype: str = "bf16", **sizes: int) -> Bound:
    return bound_of("moe", gpu, dtype, "row", NETWORK | sizes)


def seconds(bound: Bound) -> float:
    return float(bound.total_s[0])


def convolution(gpu: str, **sizes: int) -> Bound:
    return bound_of("conv2d", gpu, "f32", "nchw", sizes)


@few_examples(25)
@given(GPUS, HEADS, st.integers(256, 1 << 14))
def test_attention_window_is_faster_unless_it_holds_all_keys(gpu, heads, keys):
    for queries in (1, keys):
        sizes = {"batch": 8, "heads": heads[0], "kv_heads": heads[1], "queries": queries, "keys": keys}
        whole = seconds(attention(gpu, **sizes))
        assert seconds(attention(gpu, **sizes, window=128)) <= whole * 1.0001
        assert seconds(attention(gpu, **sizes, window=2 * keys)) >= whole * 0.9999


@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "h200-sxm"])
def test_keys_and_values_of_8_bits_are_read_in_half_the_time(gpu):
    sizes = {"batch": 64, "heads": 64, "kv_heads": 64, "queries": 1, "keys": 32768}
    wide, narrow = (attention(gpu, **sizes, kv_dtype=kind) for kind in (0, 1))
    assert narrow.parts["dram"][0] == pytest.approx(wide.parts["dram"][0] / 2, rel=0.01)
    assert seconds(narrow) < 0.6 * seconds(wide)


def test_long_prompt_takes_four_times_as_long_as_half_of_it():
    long, half = (attention("h200-sxm", heads=32, kv_heads=8, queries=keys, keys=keys) for keys in (1 << 17, 1 << 16))
    assert seconds(long) == pytest.approx(4 * seconds(half), rel=0.05)


@few_examples(25)
@given(
    st.sampled_from(["a100-pcie-80gb", "t4", "rtx4090"]), st.integers(1, 64), st.integers(3, 2048),
    st.integers(3, 2048), st.integers(5, 252),
)  # fmt: skip
def test_convolutions_take_no_less_than_the_roofline(gpu, n, c, k, h):
    assert convolution(gpu, n=n, c=c, k=k, h=h, w=h)


def test_winograd_makes_large_convolutions_faster_than_direct_ones():
    gpu = find_gpu("a100-pcie-80gb")
    direct_s = 2 * 64 * 56 * 56 * 512 * 512 * 9 / gpu.peak_flops("f32")
    assert direct_s / 4 < seconds(convolution("a100-pcie-80gb", n=64, c=512, k=512, h=56, w=56)) < direct_s


@pytest.mark.parametrize("other", [{"r": 1, "s": 1}, {"stride": 2}, {"groups": 2}, {"dilation": 2}])
def test_only_3x3_convolutions_have_a_winograd_baseline(other):
    sizes = {"c": 64, "h": 56, "w": 56, "k": 64, "padding": 1}
    assert CASES["3x3"](find_op("conv2d").problem("f32", **sizes).sizes)
    assert not CASES["3x3"](find_op("conv2d").problem("f32", **sizes, **other).sizes)


def test_moe_with_one_token_reads_only_the_selected_experts():
    per_expert = 3 * NETWORK["hidden"] * NETWORK["intermediate"] * 2
    single, all_ = (experts("h200-sxm", tokens=tokens).parts["dram"][0] for tokens in (1, 4096))
    assert single == pytest.approx(NETWORK["topk"] * per_expert / find_gpu("h200-sxm").memory_bandwidth, rel=0.02)
    assert all_ >= NETWORK["experts"] * per_expert / find_gpu("h200-sxm").memory_bandwidth


def test_weights_of_4_bits_are_read_in_about_a_fourth_of_the_time():
    half, small = (experts("b200", dtype, tokens=256).parts["dram"][0] for dtype in ("bf16", "w4a16"))
    assert small == pytest.approx(half / 4, rel=0.1)


def test_uneven_routing_gives_the_busiest_gpu_more_work():
    even, uneven = (experts("h200-sxm", tokens=8192, ep=8, routing=power).parts["math"][0] for power in (0, 120))
    assert uneven > 1.2 * even


@pytest.mark.parametrize("gpu", ["a100-pcie-40gb", "t4"])
def test_elementwise_baseline_moves_three_tensors_at_dram_rate(gpu):
    rate = 0.8 * find_gpu(gpu).memory_bandwidth
    bound = bound_of("elementwise", gpu, "f32", "row", {"n": 1 << 30})
    assert seconds(bound) == pytest.approx(12 * (1 << 30) / rate, rel=0.05)


SIZE = st.integers(1, 1 << 14)
MATMUL_GPUS = st.sampled_from(["a100-sxm4-80gb", "l40s", "h200-sxm", "rtx4090", "t4"])


def product_s(gpu: str, m: int, n: int, k: int, dtype: str = "f16", timing: Timing = GRAPH) -> float:
    dims = {name: np.array([size]) for name, size in (("batch", 1), ("m", m), ("n", n), ("k", k))}
    return float(features("matmul", find_gpu(gpu), dtype, "nt", dims, timing)[0].total_s[0])


@few_examples(25)
@given(MATMUL_GPUS, SIZE, SIZE, SIZE)
def test_matmul_time_is_at_least_launch_time_and_arithmetic_time(gpu, m, n, k):
    device = find_gpu(gpu)
    least = max(GRAPH.launch_clk / device.boost_clock_hz, 2 * m * n * k / device.peak_flops("f16", tensor=True))
    assert product_s(gpu, m, n, k) >= least


@few_examples(25)
@given(MATMUL_GPUS, SIZE, SIZE, SIZE)
def test_baseline_with_an_l2_flush_is_no_faster(gpu, m, n, k):
    flushed = Timing(GRAPH.launch_clk, np.inf)
    assert product_s(gpu, m, n, k, timing=flushed) >= product_s(gpu, m, n, k)


def test_large_matmul_is_bound_by_tensor_cores_in_f16_and_by_fma_in_f32():
    half, single = (product_s("a100", 8192, 8192, 8192, dtype, FLUSHED) for dtype in ("f16", "f32"))
    assert half == pytest.approx(2 * 8192**3 / (0.79 * 312e12), rel=0.1)
    assert single == pytest.approx(2 * 8192**3 / (0.85 * 19.5e12), rel=0.1)


def test_f32_matmul_time_depends_on_tile_size_and_clock():
    square = {"batch": 64, "m": 96, "n": 96, "k": 512}
    dims = {name: np.array([size]) for name, size in square.items()}
    times = {gpu: features("matmul", find_gpu(gpu), "f32", "nn", dims, GRAPH)[0].total_s[0] for gpu in ("a100", "v100")}
    assert times["a100"] > times["v100"]  # 128 x 128 tiles on the A100 are half empty, but the V100 uses 64 x 64
    share = {
        gpu: product_s(gpu, 8192, 8192, 8192, "f32", GRAPH) * find_gpu(gpu).peak_flops("f32") for gpu in ("l4", "a100")
    }
    assert share["l4"] > 1.5 * share["a100"]


@pytest.mark.parametrize(
    ("dtype", "less"), [("f8e4m3", "bf16"), ("w8a16", "bf16"), ("w4a16", "w8a16"), ("nvfp4", "f8e4m3")]
)
def test_weights_of_fewer_bits_take_fewer_bytes(dtype, less):
    assert precision_of(dtype).b_bytes < precision_of(less).b_bytes


def test_quantizing_activations_reads_16_bits_and_writes_the_dtype():
    assert precision_of("f8e4m3").quantising_bytes == 3.0
    assert precision_of("w4a16").quantising_bytes == precision_of("bf16").quantising_bytes == 0.0
    assert precision_of("nvfp4").quantising_bytes == 2.0 + precision_of("nvfp4").a_bytes


def test_unsupported_dtype_has_no_flop_rate():
    assert rate_of(find_gpu("a100"), "f8e4m3") == 0
    assert rate_of(find_gpu("h100"), "nvfp4") == 0
    assert rate_of(find_gpu("b200"), "nvfp4") == pytest.approx(2 * rate_of(find_gpu("b200"), "f8block"), rel=0.01)
    assert rate_of(find_gpu("a100"), "w4a16") == rate_of(find_gpu("a100"), "bf16") > 0
