"""Test the shipped models of attention, mixtures of experts, convolutions and operators over rows."""

from functools import cache

import pytest

from kernrec import paths
from kernrec.gpu import find_gpu
from kernrec.model.vendor.bound import BaselinePrediction
from kernrec.model.vendor.model import VendorModel
from kernrec.model.vendor.model_file import load
from kernrec.op import find_op

ATTENTION = {"heads": 32, "kv_heads": 8, "head_dim": 128}
QWEN = {"hidden": 4096, "intermediate": 1536, "experts": 128, "topk": 8}


@cache
def model(op: str) -> VendorModel:
    return load(paths.shipped("db/prebuilt") / "models" / "vendor" / f"{op}.json")


def baselines(op: str, gpu: str, dtype: str, **sizes: int) -> dict[str, BaselinePrediction]:
    predicted = model(op).predict(find_op(op).problem(dtype, **sizes), find_gpu(gpu))
    seconds = [baseline.latency_s.value for baseline in predicted]
    assert seconds == sorted(seconds)
    return {baseline.backend: baseline for baseline in predicted}


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3", "f8block", "nvfp4", "mxfp4", "mxfp4f8", "w4a16"])
def test_experts_have_baselines_in_every_dtype_on_blackwell(dtype):
    predicted = baselines("moe", "b200", dtype, tokens=256, **QWEN)
    assert predicted
    assert all(not baseline.latency_s.transferred and baseline.version for baseline in predicted.values())


def test_missing_4_bit_arithmetic_is_given_as_the_reason():
    problem = find_op("moe").problem("nvfp4", tokens=256, **QWEN)
    assert model("moe").predict(problem, find_gpu("h100")) == ()
    assert "nvfp4" in next(iter(model("moe").refusals(problem, find_gpu("h100")).values()))


@pytest.mark.parametrize(("gpu", "within"), [("h200", 0.15), ("rtx4090", 0.35)])
def test_time_grows_with_work_far_beyond_the_recorded_sizes(gpu, within):
    for op, dtype, small, large in (
        ("moe", "bf16", {"tokens": 1 << 18, **QWEN}, {"tokens": 1 << 20, **QWEN}),
        ("attention", "bf16", *({"queries": n, "keys": n, "causal": 1, **ATTENTION} for n in (1 << 17, 1 << 18))),
    ):
        before, after = (baselines(op, gpu, dtype, **sizes) for sizes in (small, large))
        for backend, baseline in after.items():
            assert baseline.latency_s.value == pytest.approx(4 * before[backend].latency_s.value, rel=within)
            assert baseline.latency_s.value > 0.95 * baseline.busy["math"]
