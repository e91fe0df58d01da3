"""The shipped models of attention, mixtures of experts, convolutions and operators over rows."""

from functools import cache

import pytest

from kernrec import paths
from kernrec.gpu import find_gpu
from kernrec.model.vendor.model import VendorModel
from kernrec.model.vendor.model_file import load
from kernrec.model.vendor.predicted import StackPrediction
from kernrec.op import find_op

ATTENTION = {"heads": 32, "kv_heads": 8, "head_dim": 128}
QWEN = {"hidden": 4096, "intermediate": 1536, "experts": 128, "topk": 8}


@cache
def model(op: str) -> VendorModel:
    return load(paths.shipped("db/prebuilt") / "models" / "vendor" / f"{op}.json")


def lines(op: str, gpu: str, dtype: str, **sizes: int) -> dict[str, StackPrediction]:
    predicted = model(op).predict(find_op(op).problem(dtype, **sizes), find_gpu(gpu))
    seconds = [line.latency_s.value for line in predicted]
    assert seconds == sorted(seconds)
    return {line.stack: line for line in predicted}


@pytest.mark.parametrize(("gpu", "sizes", "stacks"), [
    ("h200", {}, {"vLLM", "SGLang", "TensorRT-LLM"}), ("a100", {"kv_dtype": 1}, set()),
    ("l40s", {"kv_dtype": 1}, {"TensorRT-LLM"}), ("b200", {}, {"vLLM", "TensorRT-LLM"}),
])  # fmt: skip
def test_prompts_have_lines_of_the_stacks_that_were_recorded_with_their_data_types(gpu, sizes, stacks):
    assert set(lines("attention", gpu, "bf16", queries=4096, keys=4096, causal=1, **ATTENTION, **sizes)) == stacks


def test_keys_and_values_of_8_bits_and_windows_save_time_in_decoding():
    sizes = {"queries": 1, "keys": 16384, "batch": 64, **ATTENTION}
    whole, small, windowed = (
        min(line.latency_s.value for line in lines("attention", "h200", "bf16", **sizes, **more).values())
        for more in ({}, {"kv_dtype": 1}, {"window": 1024})
    )
    assert small < 0.8 * whole
    assert windowed < 0.3 * whole


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3", "f8block", "nvfp4", "mxfp4", "mxfp4f8", "w4a16"])
def test_experts_have_lines_in_every_data_type_on_blackwell(dtype):
    predicted = lines("moe", "b200", dtype, tokens=256, **QWEN)
    assert predicted
    assert all(not line.latency_s.transferred and line.version for line in predicted.values())


def test_experts_in_4_bits_have_a_reason_where_a_card_has_no_such_arithmetic():
    problem = find_op("moe").problem("nvfp4", tokens=256, **QWEN)
    assert model("moe").predict(problem, find_gpu("h100")) == ()
    assert "nvfp4" in next(iter(model("moe").refusals(problem, find_gpu("h100")).values()))


@pytest.mark.parametrize(("gpu", "within"), [("h200", 0.15), ("rtx4090", 0.35)])
def test_far_beyond_the_recorded_sizes_time_grows_about_as_the_work_does(gpu, within):
    for op, dtype, small, large in (
        ("moe", "bf16", {"tokens": 1 << 18, **QWEN}, {"tokens": 1 << 20, **QWEN}),
        ("attention", "bf16", *({"queries": n, "keys": n, "causal": 1, **ATTENTION} for n in (1 << 17, 1 << 18))),
    ):
        before, after = (lines(op, gpu, dtype, **sizes) for sizes in (small, large))
        for stack, line in after.items():
            assert line.latency_s.value == pytest.approx(4 * before[stack].latency_s.value, rel=within)
            assert line.latency_s.value > 0.95 * line.busy["math"]


def test_a_convolution_of_3x3_has_a_line_of_cudnn_and_others_have_none():
    sizes = {"n": 32, "c": 64, "h": 56, "w": 56, "k": 64, "padding": 1}
    (line,) = lines("conv2d", "a100-pcie-80gb", "f32", **sizes).values()
    assert (line.stack, line.version, line.latency_s.transferred) == ("cuDNN", "8.9", False)
    assert not lines("conv2d", "a100-pcie-80gb", "f32", **sizes, stride=2)
    assert lines("conv2d", "rtx4090", "f32", **sizes)["cuDNN"].latency_s.transferred


@pytest.mark.parametrize(("op", "sizes"), [
    ("softmax", {"rows": 8192, "columns": 1024}), ("layernorm", {"rows": 8192, "columns": 768}),
    ("elementwise", {"n": 1 << 24}),
])  # fmt: skip
def test_operators_over_rows_have_a_line_of_pytorch(op, sizes):
    (line,) = lines(op, "t4", "f32", **sizes).values()
    assert line.stack == "PyTorch"
    assert line.latency_s.low < line.latency_s.value < line.latency_s.high
    assert line.power_w is None
