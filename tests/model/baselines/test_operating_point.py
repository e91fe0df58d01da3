"""Test names and versions of backends, and their operating points."""

import json
import re
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec import paths
from kernrec.gpu import all_gpus, find_gpu
from kernrec.model.analytical.launch_costs import NominalCosts
from kernrec.model.analytical.power import PowerModel
from kernrec.model.analytical.spread import Estimate, Source
from kernrec.model.analytical.sustained_roof import ideal_launch
from kernrec.model.baselines import operating_point
from kernrec.model.baselines.backends import is_wanted, known_backends, released, versions_text
from kernrec.model.baselines.epilogue import padded
from kernrec.model.baselines.model import VendorModel
from kernrec.model.baselines.model_file import load
from kernrec.model.baselines.recorded_set import NORMAL_S, in_a_stream
from kernrec.op import Problem, find_op
from kernrec.op.dtype import math_dtype
from kernrec.op.problem import ANY_LAYOUT, LARGEST
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from tests.helpers.depth import few_examples
from tests.helpers.paths import ROOT


@dataclass(frozen=True)
class StubBaseline:
    latency_s: Estimate
    power_w: Estimate | None
    busy: dict[str, float]


def predicted(value: float) -> Estimate:
    return Estimate(value, value / 1.2, value * 1.2, Source.LEARNED)


def at_point(baseline: Any, gpu: Any, point: OperatingPoint, problem: Problem | None = None) -> Any:
    return operating_point.at_point([baseline], gpu, point, problem)[0]


def product(size: int, dtype: str = "f16") -> Problem:
    return find_op("matmul").problem(dtype, "nt", m=size, n=size, k=size)


def baseline(latency_s: float, power_w: float | None, math: float, dram: float) -> Any:
    busy = {"math": math * latency_s, "dram": dram * latency_s, "l2": 0.3 * latency_s, "launch": 3e-6}
    return StubBaseline(predicted(latency_s), None if power_w is None else predicted(power_w), busy)


devices = st.sampled_from([gpu for gpu in all_gpus() if gpu.sm >= 75])
baselines = st.builds(
    lambda time, watts, math, dram: (time, watts, math, dram),
    st.floats(1e-5, 1.0),
    st.one_of(st.none(), st.floats(0.3, 1.0)),
    st.floats(0.05, 1.0),
    st.floats(0.05, 1.0),
)


@given(devices, baselines, st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2))
@few_examples(60)
def test_lower_power_limit_or_clock_is_never_faster_and_draws_no_more(gpu, drawn, shares):
    time, watts, math, dram = drawn
    default = baseline(time, watts and watts * gpu.tdp_w, math, dram)
    low, high = sorted(shares)
    span, power = gpu.tdp_w - gpu.power_min_w, PowerModel.for_gpu(gpu)
    clocks = power.running_hz - power.minimum_hz
    for less, more in (
        (OperatingPoint(gpu.power_min_w + low * span), OperatingPoint(gpu.power_min_w + high * span)),
        (OperatingPoint(None, power.minimum_hz + low * clocks), OperatingPoint(None, power.minimum_hz + high * clocks)),
    ):
        slow, fast = at_point(default, gpu, less), at_point(default, gpu, more)
        assert slow.latency_s.value >= fast.latency_s.value * (1 - 2e-3)
        assert slow.latency_s.low <= slow.latency_s.value <= slow.latency_s.high
        if slow.power_w is not None and fast.power_w is not None:
            assert slow.power_w.value <= fast.power_w.value * (1 + 1e-2)


def test_default_operating_point_keeps_the_baseline():
    gpu, default = find_gpu("h200"), baseline(2e-3, 600.0, 0.8, 0.1)
    for point in (DEFAULT_POINT, OperatingPoint(gpu.tdp_w)):
        assert at_point(default, gpu, point, product(8192)) is default


@pytest.mark.parametrize(("gpu", "dtype"), [
    ("l4", "f16"), ("l4", "f32"), ("t4", "f16"), ("h100-pcie", "f16"), ("b200", "nvfp4"), ("l40s", "f8block"),
    ("a100", "w4a16"),
])  # fmt: skip
def test_no_baseline_beats_the_roofline_at_its_power_limit(gpu, dtype):
    device, problem = find_gpu(gpu), product(8192, dtype)
    power = PowerModel.for_gpu(device)
    ideal = ideal_launch(device, problem.op, problem.dtype)
    assert ideal is not None
    least = NominalCosts(*ideal.costs(problem))
    for limit_w in (device.tdp_w, device.power_min_w):
        roof_s = float(power.apply_power_limit(least, limit_w).latency_s[0])
        claimed = baseline(problem.flops / device.peak_flops(math_dtype(dtype), tensor=dtype != "f32"), None, 1.0, 0.2)
        held = at_point(claimed, device, OperatingPoint(limit_w), problem)
        assert held.latency_s.value >= roof_s * (1 - 1e-9)
        assert held.latency_s.low <= held.latency_s.value <= held.latency_s.high


def test_tf32_matmul_at_a_quarter_of_its_power_takes_several_times_as_long():
    # An earlier version predicted 40 ms at every power limit.
    gpu, problem = find_gpu("rtx3090"), product(8192, "tf32")
    default = baseline(40e-3, None, 0.8, 0.2)
    assert at_point(default, gpu, OperatingPoint(100.0), problem).latency_s.value > 3 * 40e-3


def test_memory_bound_baseline_keeps_its_time_at_a_lower_clock():
    gpu = find_gpu("a100")
    default = replace(baseline(1e-3, 250.0, 0.01, 1.0), busy={"math": 1e-5, "dram": 1e-3, "l2": 1e-4, "launch": 3e-6})
    assert at_point(default, gpu, OperatingPoint(None, 1.0e9)).latency_s.value == pytest.approx(1e-3, rel=1e-3)


@given(st.lists(st.tuples(st.floats(1.0, 1.6), st.none() | st.floats(0.5, 1.0)), min_size=2, max_size=4))
@few_examples(40)
def test_backends_keep_their_order_at_a_lower_limit(backends):
    gpu, problem = find_gpu("a100-sxm4-80gb"), product(8192, "bf16")
    least = problem.flops / 270e12
    baselines = [baseline(least * slower, share and share * gpu.tdp_w, 0.9 / slower, 0.2) for slower, share in backends]
    carried = operating_point.at_point(baselines, gpu, OperatingPoint(250.0), problem)
    before, after = ([each.latency_s.value for each in every] for every in (baselines, carried))
    for first in range(len(backends)):
        for other in range(len(backends)):
            if before[first] < before[other]:
                assert after[first] <= after[other] * (1 + 5e-3)
                assert after[other] / after[first] <= before[other] / before[first] * 1.1


FLOOR_S = 30e-6
times = st.floats(1e-6, 1e-1)


def call(latency_s: float, spread: float = 1.1) -> Estimate:
    return Estimate(latency_s, latency_s / spread, latency_s * spread, Source.LEARNED)


def wide(predicted: Estimate) -> float:
    return log(predicted.high / predicted.low)


def model(op: str) -> VendorModel:
    return load(paths.shipped("db/prebuilt") / "models" / "vendor" / f"{op}.json")


@given(times, times, times, st.floats(1.01, 4.0))
def test_baseline_call_in_a_stream_is_no_slower_than_alone(call_s, floor_s, work_s, by):
    alone = call(call_s, by)
    stream = in_a_stream(alone, floor_s, work_s)
    assert 0 < stream.low < stream.value <= alone.value
    assert stream.high == alone.high
    assert wide(stream) >= wide(alone) * (1 - 1e-9)


def test_only_short_baseline_calls_are_faster_in_a_stream():
    short, long = (in_a_stream(call(seconds), FLOOR_S, 1e-6) for seconds in (FLOOR_S, 100 * FLOOR_S))
    assert short.value == pytest.approx(NORMAL_S + 1e-6)
    assert long.value == pytest.approx(100 * FLOOR_S, rel=0.01)
    assert wide(short) > 2 * wide(long)


@pytest.mark.parametrize(("op", "dtype", "small", "large"), [
    ("elementwise", "f32", {"n": 1 << 14}, {"n": 1 << 25}),
    ("softmax", "f32", {"rows": 64, "columns": 256}, {"rows": 16000, "columns": 4000}),
    ("layernorm", "f32", {"rows": 64, "columns": 512}, {"rows": 16000, "columns": 4000}),
    ("matmul", "f32", {"m": 64, "n": 64, "k": 64}, {"m": 4096, "n": 4096, "k": 4096}),
])  # fmt: skip
def test_shipped_baselines_exclude_host_time_and_widen_the_interval_for_it(op, dtype, small, large):
    short, long = (
        model(op).on(find_gpu("a100-pcie-40gb")).predict(find_op(op).problem(dtype, **sizes))[0]
        for sizes in (small, large)
    )
    assert short.latency_s.value < 15e-6 < short.latency_s.high
    assert wide(short.latency_s) > 2 * wide(long.latency_s)
    assert short.busy["launch"] == NORMAL_S


def test_work_outside_the_recorded_range_widens_the_interval():
    (entry,) = model("conv2d").sets
    assert entry.work is not None
    inside, below, above = entry.work.distance(np.log2(np.array([[1e-4], [1e-8], [1e2]])))
    assert inside == 0
    assert min(below, above) > 0.3


def test_unaligned_rows_are_padded():
    problem = find_op("matmul").problem("f16", "nn", m=64, n=100, k=64)
    assert {other.sizes["n"] for other in padded(problem)} == {100, 104, 128}
    assert padded(find_op("matmul").problem("f16", "nn", m=100, n=64, k=64)) == ()


def test_no_size_is_padded_beyond_the_largest_one():
    sizes = {"m": 1, "n": LARGEST, "k": 12}
    others = padded(find_op("matmul").problem("f16", "nn", **sizes))
    assert {(other.sizes["n"], other.sizes["k"]) for other in others} == {(LARGEST, 12), (LARGEST, 16), (LARGEST, 64)}


def test_custom_op_named_like_a_shipped_op_is_not_padded():
    problem = replace(find_op("matmul"), layouts=(ANY_LAYOUT,)).problem("f16", ANY_LAYOUT, m=64, n=100, k=64)
    assert padded(problem) == ()


def test_backend_name_includes_its_version_and_unknown_versions_are_refused(refuses):
    assert known_backends("trtllm@1.3.0rc20,vllm") == ("TensorRT-LLM@1.3.0rc20", "vLLM")
    refuses(lambda: known_backends("trtllm@1.3"))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [((), True), (("SGLang",), True), (("SGLang@0.5.12",), True), (("SGLang@0.5.14",), False), (("vLLM",), False)],
)
def test_backend_is_selected_by_name_or_by_name_and_version(wanted, expected):
    assert is_wanted("SGLang (static scales)", wanted, "0.5.12, static scales") is expected


def test_newest_version_is_used_unless_one_is_named():
    recommender, sizes = Recommender([]), {"m": 4096, "n": 4096, "k": 4096}

    def baselines(*backends: str) -> dict[str | None, float]:
        query = Query(Objective.LATENCY, top=1, backends=backends)
        answer = recommender.recommend("matmul", "b200", sizes, "f8block", "nt", query)
        return {baseline.version: baseline.latency_s.value for baseline in answer.baselines}

    newest, old = baselines("TensorRT-LLM"), baselines("TensorRT-LLM@1.3.0rc15")
    assert list(newest) == ["1.3.0rc20"]
    assert list(old) == ["1.3.0rc15"]
    assert newest["1.3.0rc20"] < 0.8 * old["1.3.0rc15"]
    assert baselines("TensorRT-LLM@1.3.0rc20") == newest


@pytest.mark.parametrize(("backend", "version", "date"), [
    ("vLLM", "0.24.0", "2026-06-30"), ("SGLang (static scales)", "0.5.12", "2026-05-16"),
    ("SGLang", "0.5.12, static scales", "2026-05-16"), ("vLLM", "0.14.0 to 0.24.0", "2026-01-20 to 2026-06-30"),
    ("TensorRT-LLM", "1.0.0 to 1.3.0rc20", None), ("vLLM", "0.99.0", None), ("vLLM", None, None),
    ("FlashAttention", "3", None),
])  # fmt: skip
def test_released_returns_the_date_or_none(backend, version, date):
    assert released(backend, version) == date


def test_versions_are_ordered_by_number():
    assert versions_text(["0.5.10", "0.5.9", None, "0.5.9"]) == "0.5.9 to 0.5.10"
    assert versions_text(["1.3.0rc20", "1.3.0rc5", "1.2.0"]) == "1.2.0 to 1.3.0rc20"
    assert versions_text(["8.9"]) == "8.9"
    assert versions_text([None]) is None


def test_every_shipped_version_has_a_date_or_is_known_to_lack_one():
    folder = ROOT / "db/prebuilt"
    named = set()
    for about in json.loads((folder / "recorded/contents.json").read_text()).values():
        named |= {re.sub(r"@\S+", "", name) for name in about["backends"]}
    for path in (folder / "models/vendor").glob("*.json"):
        for entry in json.loads(path.read_text())["sets"]:
            for backend, devices in entry["stacks"].items():
                named |= {
                    f"{backend.partition(' (')[0].partition('@')[0]} {version}"
                    for version in devices.values()
                    if version
                }
    undated = {name for name in named if released(*name.split(" ", 1)) is None}
    assert undated == {"TensorRT-LLM 1.3.0rc17", "TensorRT-LLM 1.3.0rc20", "cuDNN 8.9"}
