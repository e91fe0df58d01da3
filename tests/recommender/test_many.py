"""Test that many shapes at once get the same answers as one by one, with errors reported per shape."""

import numpy as np
import pytest

import kernrec
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.many import ManyAnswers, answer_many
from tests.helpers.recording import make_measured_database

SHAPES = {
    "matmul": {"m": [1, 64, 4096, 1000], "n": [4096, 77, 512, 1000], "k": [4096, 64, 64, 99], "bias": [0, 1, 0, 1]},
    "conv2d": {"c": [3, 64, 128], "h": 28, "w": [28, 56, 57], "k": [64, 65, 8], "padding": [1, 0, 1], "groups": 1},
    "attention": {"heads": [8, 16], "queries": [1, 300], "keys": [2048, 300], "head_dim": [128, 64]},
    "softmax": {"rows": [1, 4096], "columns": [128_256, 512]},
}


@pytest.mark.parametrize("objective", ["latency", "energy", "edp"])
@pytest.mark.parametrize("op", SHAPES)
@pytest.mark.parametrize("gpu", ["h200", "t4"])
def test_batch_answers_equal_single_answers(recommender, op, objective, gpu):
    query = Query(Objective(objective), top=1)
    many = answer_many(recommender, op, gpu, SHAPES[op], query, dtype="f32")
    assert not many.failures
    for number, problem in enumerate(many.problems):
        best = recommender.recommend(op, gpu, problem.dim, "f32", query=query).best
        assert (many.kernels[number], dict(many.configs[number])) == (best.kernel.name, dict(best.config))
        assert many.latency_s[number].tolist() == [best.latency_s.value, best.latency_s.low, best.latency_s.high]
        assert many.energy_j[number, 0] == best.energy_j.value
        assert many.power_limit_w[number] == best.power_limit_w
        assert many.sources[number] == best.source


def test_function_accepts_and_returns_arrays():
    many = kernrec.recommend_many("mv", "h200", dtype="f16", m=np.arange(1, 4) * 1024, k=4096)
    assert isinstance(many, ManyAnswers)
    assert many.latency_s.shape == (len(many), 3) == (3, 3)
    assert (np.diff(many.latency_s[:, 0]) > 0).all()
    assert len(kernrec.recommend_many("mv", "h200", m=[], k=4096)) == 0
    assert kernrec.recommend_network("bert-base", "l4").recommendation.latency_s.value > 0


def test_error_that_concerns_all_shapes_is_raised_once(recommender, refuses):
    refuses(lambda dims, query: answer_many(recommender, "matmul", "h200", dims, query), [
        ({"m": [1, 2], "n": [1, 2, 3], "k": 1}, Query(Objective.LATENCY)),
        ({"m": [1.5], "n": 1, "k": 1}, Query(Objective.LATENCY)),
        ({"m": [[1]], "n": 1, "k": 1}, Query(Objective.LATENCY)), ({"m": [1], "n": 1}, Query(Objective.LATENCY)),
        ({"m": [1], "n": 1, "k": 1}, Query()), ({"m": [1], "n": 1, "k": 1}, Query(Objective.ENERGY, max_slowdown=0.1)),
    ])  # fmt: skip


def test_measured_shapes_use_their_measurements(tmp_path):
    path = tmp_path / "measured.duckdb"
    make_measured_database(path, factor=0.5)
    own = Recommender([path])
    query = Query(Objective.LATENCY, top=1)
    many = answer_many(own, "matmul", "rtx4090", {"m": [768, 768], "n": 512, "k": [256, 192]}, query)
    single = own.recommend("matmul", "rtx4090", {"m": 768, "n": 512, "k": 256}, query=query).best
    assert many.sources == ("measured", "predicted")
    assert many.latency_s[0, 0] == single.latency_s.value
