"""Test that every problem that a GPU can compute has a baseline that obeys physical laws."""

import random

import pytest

from kernrec.gpu import find_gpu
from kernrec.model.vendor.physics import derived
from kernrec.op import find_op
from kernrec.recommender import Recommender
from kernrec.recommender.baselines import baselines_of
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.physics import cold_seconds

PROBLEMS = [
    ("rmsnorm", "bf16", {"rows": 4096, "columns": 4096}), ("layernorm", "f16", {"rows": 2, "columns": 1 << 20}),
    ("softmax", "bf16", {"rows": 8192, "columns": 2048}), ("elementwise", "f16", {"n": 1 << 24}),
    ("transpose", "f32", {"rows": 4096, "columns": 4096}), ("matvec", "f32", {"m": 8192, "k": 8192}),
    ("matmul", "bf16", {"m": 128, "n": 128, "k": 64, "batch": 64}),
    ("conv2d", "f16", {"n": 8, "c": 64, "h": 56, "w": 56, "k": 128, "r": 1, "s": 1, "stride": 2}),
    ("conv2d", "f32", {"n": 8, "c": 64, "h": 56, "w": 56, "k": 64, "groups": 64}),
    ("attention", "f32", {"heads": 16, "queries": 512, "keys": 77, "head_dim": 64}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "dtype", "sizes"), PROBLEMS, ids=lambda value: str(value)[:40])
def test_every_problem_has_a_baseline_within_physical_limits(op, dtype, sizes):
    context, problem = Recommender([]).context, find_op(op).problem(dtype, None, **sizes)
    for name in random.Random(op).sample(["a100", "h100", "rtx4090", "l4", "t4", "b200", "rtx3060"], 2):
        gpu = find_gpu(name)
        for limit_w in (None, gpu.power_min_w):
            baselines = baselines_of(context, problem, gpu, OperatingPoint(limit_w))
            assert baselines
            for baseline in baselines:
                assert (baseline.power_w or 0.0) <= baseline.power_limit_w * 1.001
                if baseline.source == "predicted":
                    assert baseline.latency_s >= cold_seconds(problem, gpu)
                    assert baseline.latency_s.high > 1.5 * baseline.latency_s > baseline.latency_s.low


def test_few_long_rows_take_at_least_the_latency_of_one_block():
    gpu, layernorm = find_gpu("h100"), find_op("layernorm")
    few, many = (
        derived(layernorm.problem("f32", None, rows=rows, columns=(1 << 22) // rows), gpu) for rows in (2, 1024)
    )
    assert few is not None
    assert many is not None
    assert few.latency_s.value > 10.0 * many.latency_s.value


def test_gpu_without_the_arithmetic_has_no_baseline():
    assert derived(find_op("matmul").problem("nvfp4", "nt", m=64, n=64, k=64), find_gpu("a100")) is None
