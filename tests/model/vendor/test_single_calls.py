"""Test the conversion of single-call times to stream times: it removes the host's share and adjusts the interval."""

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec import paths
from kernrec.gpu import find_gpu
from kernrec.model.prior.spread import Estimate, Source
from kernrec.model.vendor.model import VendorModel
from kernrec.model.vendor.model_file import load
from kernrec.model.vendor.recorded_set import NORMAL_S, in_a_stream
from kernrec.op import find_op

FLOOR_S = 30e-6
times = st.floats(1e-6, 1e-1)


def call(latency_s: float, spread: float = 1.1) -> Estimate:
    return Estimate(latency_s, latency_s / spread, latency_s * spread, Source.LEARNED)


def wide(predicted: Estimate) -> float:
    return log(predicted.high / predicted.low)


def model(op: str) -> VendorModel:
    return load(paths.shipped("db/prebuilt") / "models" / "vendor" / f"{op}.json")


@given(times, times, times, st.floats(1.01, 4.0))
def test_call_in_a_stream_is_never_longer_or_more_certain(call_s, floor_s, work_s, by):
    alone = call(call_s, by)
    stream = in_a_stream(alone, floor_s, work_s)
    assert 0 < stream.low < stream.value <= alone.value
    assert stream.high == alone.high
    assert wide(stream) >= wide(alone) * (1 - 1e-9)


def test_shortest_call_costs_a_launch_and_its_work_and_a_long_one_is_unchanged():
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
        model(op).predict(find_op(op).problem(dtype, **sizes), find_gpu("a100-pcie-40gb"))[0]
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
