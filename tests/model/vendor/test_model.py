"""Test the shipped matmul model for single problems and for several at once."""

import pytest

from kernrec import paths
from kernrec.gpu import find_gpu
from kernrec.model.vendor.model import VendorModel
from kernrec.model.vendor.model_file import load
from kernrec.op import find_op


def model(op: str = "matmul") -> VendorModel:
    """Load the model afresh, because a loaded model caches its predictions."""
    return load(paths.shipped("db/prebuilt") / "models" / "vendor" / f"{op}.json")


@pytest.mark.parametrize("gpu", ["a100", "h200", "rtx4090"])
def test_problems_predicted_together_equal_single_predictions(gpu):
    card, op = find_gpu(gpu), find_op("matmul")
    kinds = [("bf16", "nt"), ("f16", "nn"), ("f32", "nn")]
    shapes = [{"m": 100 * i, "n": 4096, "k": 512 + 64 * i} for i in range(1, 5)]
    problems = [op.problem(dtype, layout, **dims) for dims in shapes for dtype, layout in kinds]
    problems.append(op.problem("bf16", "nt", m=64, n=64, k=64, batch=3))
    together = model()
    together.predict_many(problems, card)
    alone = model()
    for problem in problems:
        predicted, expected = together.predict(problem, card), alone.predict(problem, card)
        assert bool(predicted) == (problem.sizes["batch"] == 1)
        for baseline, single in zip(predicted, expected, strict=True):
            assert baseline.latency_s.value == pytest.approx(single.latency_s.value, rel=1e-12)
            assert (baseline.backend, baseline.recorded_as) == (single.backend, single.recorded_as)


def test_gpu_without_arithmetic_for_a_dtype_has_no_prediction():
    turing, problem = find_gpu("rtx2080ti"), find_op("matmul").problem("bf16", "nt", m=256, n=256, k=256)
    assert model().predict(problem, turing) == ()
    assert model().predict(problem, find_gpu("rtx3090"))


def test_cache_of_estimates_is_bounded():
    predictor, card, op = model(), find_gpu("a100"), find_op("matmul")
    for start in range(0, 9000, 3000):  # batches are quick to predict: none was recorded
        predictor.predict_many([op.problem("bf16", "nt", m=start + m, n=1, k=1, batch=2) for m in range(1, 3001)], card)
    assert len(predictor._predicted) <= 7096


def test_only_trees_of_the_requested_gpu_are_expanded():
    asked_about = model()
    asked_about.predict(find_op("matmul").problem("bf16", "nt", m=256, n=256, k=256), find_gpu("h200"))
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
    card, definition = find_gpu(gpu), find_op(op)
    layout = "nt" if op == "matmul" else None
    backends = model(op)
    numbers = [*range(1, 80), *range(80, 3000, 37)]
    problems = [definition.problem(dtype, layout, **sizes, **{items: number}) for number in numbers]
    backends.predict_many(problems, card)
    before: dict[str, float] = {}
    for problem in problems:
        times = {each.backend: each.latency_s.value for each in backends.predict(problem, card)}
        assert times
        assert all(time_s <= times.get(backend, time_s) * 1.05 for backend, time_s in before.items()), problem.key
        before = times
