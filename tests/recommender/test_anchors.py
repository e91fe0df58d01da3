"""Test predictions against times of real GPUs, if the folder of recorded data is present."""

import csv
import math
from collections.abc import Iterable

import pytest

from kernrec.recommender import Objective, Query, Recommender
from tests.helpers.paths import RECORDINGS

ANCHORS = RECORDINGS / "anchors"

# A tuner that only uses tiles dividing the problem has few options for 17 x 17 pixels; kernrec's kernels guard edges.
POORLY_TUNED = 17


needs_anchors = pytest.mark.skipif(not ANCHORS.is_dir(), reason="needs the recorded anchors in ../shared/data")


def ratios(
    file: str, op: str, dtype: str, gpu: str, dims: tuple[str, ...], columns: tuple[str, ...]
) -> dict[tuple[int, ...], float]:
    """Return the predicted best latency over the fastest measured latency, by shape."""
    by_shape = {}
    recommender = Recommender([])
    with (ANCHORS / file).open() as rows:
        for row in csv.DictReader(rows):
            shape = {name: int(row[name]) for name in dims}
            best = recommender.recommend(op, gpu, shape, dtype, query=Query(Objective.LATENCY, top=1)).best
            by_shape[tuple(shape.values())] = best.latency_s.value / min(float(row[column]) for column in columns)
    return by_shape


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


@needs_anchors
def test_rtx3090_convolutions_are_predicted_at_the_level_of_tuned_ones():
    dims = ("h", "n", "w", "c", "k", "r", "s", "stride", "padding")
    by_shape = ratios("conv2d_f32_ansor.csv", "conv2d", "f32", "rtx3090", dims, ("best_latency_s",))
    assert len(by_shape) == 8
    assert 0.8 <= geometric_mean(by_shape.values()) <= 1.5
    assert {shape[0] for shape, ratio in by_shape.items() if not 0.5 <= ratio <= 2.5} <= {POORLY_TUNED}


@needs_anchors
def test_rtx3090_tensor_core_matmuls_are_predicted_at_the_level_of_tuned_ones():
    columns = ("best_triton_latency_s", "cublas_latency_s")
    by_shape = ratios("matmul_f16_rtx3090.csv", "matmul", "f16", "rtx3090", ("m", "n", "k"), columns)
    assert len(by_shape) == 21
    assert 0.8 <= geometric_mean(by_shape.values()) <= 1.4
    assert all(1 / 2.5 <= ratio <= 2.5 for ratio in by_shape.values())
