"""Test the shipped models of backends: single and joint predictions, and the laws of physics."""

import random
from dataclasses import replace
from functools import cache
from math import inf

import numpy as np
import pytest

from kernrec import paths
from kernrec.gpu import find_gpu
from kernrec.model.baselines.bound import BaselinePrediction, Bound
from kernrec.model.baselines.model import GpuVendorModel, VendorModel
from kernrec.model.baselines.model_file import load
from kernrec.model.baselines.physics import derived
from kernrec.model.baselines.timed import Timed
from kernrec.op import find_op
from kernrec.recommender import Recommender
from kernrec.recommender.baselines import baselines_of
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.physics import cold_seconds
from kernrec.util.engine import query


def model(op: str = "matmul") -> VendorModel:
    """Load the model afresh, because a loaded model caches its predictions."""
    return load(paths.shipped("db/prebuilt") / "models" / "vendor" / f"{op}.json")


@pytest.mark.parametrize("gpu", ["a100", "h200", "rtx4090"])
def test_problems_predicted_together_equal_single_predictions(gpu):
    device, op = find_gpu(gpu), find_op("matmul")
    kinds = [("bf16", "nt"), ("f16", "nn"), ("f32", "nn")]
    shapes = [{"m": 100 * i, "n": 4096, "k": 512 + 64 * i} for i in range(1, 5)]
    problems = [op.problem(dtype, layout, **dims) for dims in shapes for dtype, layout in kinds]
    problems.append(op.problem("bf16", "nt", m=64, n=64, k=64, batch=3))
    together, alone = model().on(device), model().on(device)
    together.time(problems)
    for problem in problems:
        predicted, expected = together.predict(problem), alone.predict(problem)
        assert bool(predicted) == (problem.sizes["batch"] == 1)
        for baseline, single in zip(predicted, expected, strict=True):
            assert baseline.latency_s.value == pytest.approx(single.latency_s.value, rel=1e-12)
            assert (baseline.backend, baseline.recorded_as) == (single.backend, single.recorded_as)


def test_gpu_without_arithmetic_for_a_dtype_has_no_prediction():
    turing, problem = find_gpu("rtx2080ti"), find_op("matmul").problem("bf16", "nt", m=256, n=256, k=256)
    assert model().on(turing).predict(problem) == ()
    assert model().on(find_gpu("rtx3090")).predict(problem)


def test_number_of_cached_times_is_limited():
    bound, op = model().on(find_gpu("a100")), find_op("matmul")
    for start in range(0, 9000, 3000):  # batched problems lack recordings and are predicted fast
        bound.time([op.problem("bf16", "nt", m=start + m, n=1, k=1, batch=2) for m in range(1, 3001)])
        bound.time([op.problem("bf16", "nt", m=start + 1, n=1, k=1, batch=3)])
        assert 100 < len(bound._timed) < 200


def test_models_are_cached_for_a_limited_number_of_gpus():
    whole, a100 = model(), find_gpu("a100")
    assert whole.on(a100) is whole.on(a100)
    for number in range(200):  # users can define GPUs in files
        assert whole.on(replace(a100, name=f"a100 {number}")).gpu.name == f"a100 {number}"
    assert len(whole._on) < 100


def test_baseline_model_decodes_only_trees_of_the_requested_gpu():
    asked_about = model()
    asked_about.on(find_gpu("h200")).predict(find_op("matmul").problem("bf16", "nt", m=256, n=256, k=256))
    heads = [(gpu, head) for part in asked_about.sets for (_, gpu), head in part.heads.items()]
    assert {gpu for gpu, head in heads if "trees" in vars(head)} == {"h200-sxm"}
    assert len({gpu for gpu, _ in heads}) > 2


@pytest.mark.parametrize(("op", "gpu", "dtype", "sizes", "items"), [
    ("matmul", "h100", "bf16", {"n": 4096, "k": 4096}, "m"),
    ("matmul", "b200", "f8block", {"n": 2048, "k": 7168}, "m"),
    ("attention", "l40s", "bf16", {"heads": 32, "queries": 1, "keys": 2048, "head_dim": 128}, "batch"),
    ("conv2d", "rtx4090", "f32", {"c": 256, "h": 14, "w": 14, "k": 256, "r": 3, "s": 3, "padding": 1}, "n"),
    ("moe", "h100", "bf16", {"hidden": 2048, "intermediate": 768, "experts": 128, "topk": 8}, "tokens"),
])  # fmt: skip
def test_more_items_never_take_a_backend_less_time(op, gpu, dtype, sizes, items):
    device, definition = find_gpu(gpu), find_op(op)
    layout = "nt" if op == "matmul" else None
    backends = model(op).on(device)
    numbers = [*range(1, 80), *range(80, 3000, 37)]
    problems = [definition.problem(dtype, layout, **sizes, **{items: number}) for number in numbers]
    backends.time(problems)
    before: dict[str, float] = {}
    for problem in problems:
        times = {each.backend: each.latency_s.value for each in backends.predict(problem)}
        assert times
        assert all(time_s <= times.get(backend, time_s) * 1.05 for backend, time_s in before.items()), problem.key
        before = times


@pytest.mark.parametrize("rows", [1, 64, 2048])
def test_skipped_tree_evaluations_do_not_change_a_baseline_time(rows):
    device, problem = find_gpu("h200"), find_op("matmul").problem("f16", "nt", m=rows, n=4096, k=1024)
    ((kind, backends),) = model().on(device)._chosen(problem)
    more = query.MoreItems(list(kind.dims_of(problem.sizes)), 1, *kind.items)
    bound = Bound.of(kind.bound(more))
    reader, every = kind.reader("latency", backends, bound), np.empty((len(backends), len(bound.total_s)))
    base, none, least = bound.total_s + reader.overheads_s[:, None], np.empty((0, 1)), np.zeros(len(bound.total_s))
    reader.in_engine.fill(bound.table, none, base, least, inf, every)
    # A power of two takes as long as the fastest of all sizes that are not smaller.
    assert Timed.of(kind, backends, [problem]).seconds[:, 0] == pytest.approx(every.min(axis=1), rel=1e-12)


ATTENTION = {"heads": 32, "kv_heads": 8, "head_dim": 128}
QWEN = {"hidden": 4096, "intermediate": 1536, "experts": 128, "topk": 8}


@cache
def shipped(op: str, gpu: str) -> GpuVendorModel:
    return model(op).on(find_gpu(gpu))


def baselines(op: str, gpu: str, dtype: str, **sizes: int) -> dict[str, BaselinePrediction]:
    predicted = shipped(op, gpu).predict(find_op(op).problem(dtype, **sizes))
    seconds = [baseline.latency_s.value for baseline in predicted]
    assert seconds == sorted(seconds)
    return {baseline.backend: baseline for baseline in predicted}


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3", "f8block", "nvfp4", "mxfp4", "mxfp4f8", "w4a16"])
def test_experts_have_baselines_in_every_dtype_on_blackwell(dtype):
    predicted = baselines("moe", "b200", dtype, tokens=256, **QWEN)
    assert predicted
    assert all(not baseline.latency_s.transferred and baseline.version for baseline in predicted.values())


def test_refusal_names_the_missing_4_bit_arithmetic():
    problem = find_op("moe").problem("nvfp4", tokens=256, **QWEN)
    assert shipped("moe", "h100").predict(problem) == ()
    assert "nvfp4" in next(iter(shipped("moe", "h100").refusals(problem).values()))


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
            baselines = baselines_of(context.on(gpu), problem, OperatingPoint(limit_w))
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


def test_unsupported_dtype_has_no_baseline():
    assert derived(find_op("matmul").problem("nvfp4", "nt", m=64, n=64, k=64), find_gpu("a100")) is None


def test_few_tokens_depend_on_bandwidth_more_than_on_arithmetic():
    """An H20 has more bandwidth than an H100, but a seventh of its arithmetic."""
    sizes = {"tokens": 1, "experts": 8, "topk": 2, "hidden": 4096, "intermediate": 14336}
    h20, h100 = (
        min(each.latency_s.value for each in baselines("moe", gpu, "bf16", **sizes).values()) for gpu in ("h20", "h100")
    )
    assert h20 < 1.4 * h100
