"""Test ranking, and answers for many shapes."""

import random

import numpy as np
import pytest

import kernrec
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import all_gpus, find_gpu
from kernrec.op import Problem, find_op
from kernrec.recommender import Answer, Objective, Query, Recommender
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.many import ManyAnswers, answer_many
from kernrec.recommender.networks.compare import sweep_network
from kernrec.recommender.networks.layers import NetworkRequest
from kernrec.recommender.networks.network import answer_network
from kernrec.recommender.recommender import GpuRecommender
from kernrec.recommender.request import op_points
from kernrec.recommender.select import select
from tests.helpers.recording import make_measured_database

SIZES = {
    "matmul": {"m": (1, 7, 64, 1000, 4096), "n": (8, 77, 4096), "k": (16, 99, 8192), "bias": (0, 0, 1)},
    "conv2d": {"n": (1, 8), "c": (3, 64), "k": (8, 65, 256), "h": (14, 57), "w": (28,), "padding": (1,)},
    "attention": {"heads": (8, 32), "queries": (1, 77, 1024), "keys": (1024, 4096), "head_dim": (64, 128)},
    "matvec": {"m": (512, 1000), "k": (77, 512)},
    "softmax": {"rows": (1, 1000), "columns": (5, 1000, 128_256)},
}


@pytest.fixture(scope="module")
def recommenders():
    return Recommender([]), Recommender([])


def some_problems(op: str, dtype: str, draw: random.Random) -> list[Problem]:
    definition = find_op(op)
    layout = draw.choice(definition.layouts)
    sizes = ({name: draw.choice(values) for name, values in SIZES[op].items()} for _ in range(12))
    return list(dict.fromkeys(definition.problem(dtype, layout, **dims) for dims in sizes))


@pytest.mark.parametrize("objective", ["latency", "pareto"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("gpu", ["h200", "a100", "t4"])
@pytest.mark.parametrize("op", SIZES)
def test_ranked_costs_equal_single_answers(recommenders, op, gpu, dtype, objective):
    together, alone = recommenders
    draw, card = random.Random(f"{op} {gpu} {dtype} {objective}"), find_gpu(gpu)
    limit = None if objective == "pareto" else draw.choice([None, card.power_min_w])
    query = Query(Objective(objective), power_limit_w=limit)
    problems, points = some_problems(op, dtype, draw), op_points(card, query)
    by_problem = {each.problem: each for each in together.on(card).candidate_sets(problems, points)}
    sets = [by_problem[each] for each in problems if each in by_problem]  # grouped by kernels, not by problems
    assert [each.problem for each in sets] in (problems, [])  # no kernel supports the layout
    for candidates in sets:
        try:
            expected = alone.on(card).candidates(candidates.problem, points)
        except KernrecError:
            assert not candidates.kernels
            continue
        for ours, theirs in zip(candidates.kernels, expected.kernels, strict=True):
            assert (ours.heuristic, ours.shrinkage) == (theirs.heuristic, theirs.shrinkage)
            assert repr(ours.scope) == repr(theirs.scope)
            np.testing.assert_array_equal(ours.rows, theirs.rows)
            np.testing.assert_array_equal(ours.runnable, theirs.runnable)
            np.testing.assert_array_equal(ours.limited.latency_s, theirs.limited.latency_s)
            estimated = np.isfinite(theirs.limited.latency_s)
            for mine, other in zip(ours.limited[:-1], theirs.limited[:-1], strict=True):
                np.testing.assert_array_equal(mine[estimated], other[estimated])
            for name in ("value", "low", "high", "source", "own"):
                np.testing.assert_array_equal(getattr(ours.costs.latency, name), getattr(theirs.costs.latency, name))
                np.testing.assert_array_equal(getattr(ours.costs.energy, name), getattr(theirs.costs.energy, name))
            for position in range(0, len(ours.rows), 37):
                assert ours.running(0, position) == theirs.running(0, position)
        assert select(candidates, query) == select(expected, query)


def test_network_and_its_sweep_equal_single_answers(monkeypatch):
    answers = []
    for together in (True, False):
        if not together:  # Estimate every problem separately.
            monkeypatch.setattr(GpuRecommender, "candidate_sets", lambda *_: iter(()))
        recommender = Recommender([])
        network = answer_network(recommender, "h200", NetworkRequest("bert-base"), Query(Objective.LATENCY))
        sweep = sweep_network(recommender, network, "power limit")
        answers.append((network.as_dict(), sweep.as_dict()))
    assert answers[0] == answers[1]


def test_prepared_candidates_are_reused(recommenders):
    card, point, definition = find_gpu("l4"), (OperatingPoint(),), find_op("softmax")
    problems = [definition.problem("f16", rows=rows, columns=333) for rows in range(1, 41)]
    recommender = Recommender([])
    recommender.on(card).prepare(problems, point)
    first = recommender.on(card).candidates(problems[0], point)
    assert recommender.on(card).candidates(problems[0], point) is first  # the 40 problems did not evict the first
    for gpu in ("t4", "a100", "h200", "rtx4090"):
        recommender.on(find_gpu(gpu)).prepare(problems, point)
    assert recommender.on(card).candidates(problems[0], point) is first
    np.testing.assert_array_equal(first.latency_s, recommenders[1].on(card).candidates(problems[0], point).latency_s)
    several = recommender.on(card).candidates_of_each([problems[1], problems[0], problems[1]], point)
    assert [each.problem for each in several] == [problems[1], problems[0], problems[1]]


def test_all_gpus_and_conditions_share_a_limited_cache(monkeypatch):
    monkeypatch.setattr("kernrec.recommender.recommender._CACHED_ANSWERS", 2)
    recommender, problem = Recommender([]), find_op("softmax").problem("f16", rows=64, columns=333)

    def answer(gpu: str, inputs: str = "random") -> Answer:
        query = Query(inputs=inputs)
        return recommender.on(find_gpu(gpu), query.conditions).answer_op(problem, query)

    first = answer("l4")
    of_zeros = answer("l4", "zeros")
    assert (answer("l4") is first, answer("l4", "zeros") is of_zeros, of_zeros is first) == (True, True, False)
    assert answer("t4").gpu.name == "t4"
    assert (answer("l4", "zeros") is of_zeros, answer("l4") is first) == (True, False)


def test_latest_candidates_stay_cached():
    recommender, problem = Recommender([]), find_op("softmax").problem("f16", rows=64, columns=333)
    gpus = [gpu for gpu in all_gpus() if gpu.sm >= 75][:4]
    first, again = ([recommender.on(gpu).candidates(problem, (OperatingPoint(),)) for gpu in gpus] for _ in range(2))
    assert len(gpus) == 4
    assert all(before is after for before, after in zip(first, again, strict=True))


def test_query_with_other_l2_state_or_inputs_is_refused():
    on_gpu, problem = Recommender([]).on(find_gpu("l4")), find_op("softmax").problem("f16", rows=64, columns=333)
    with pytest.raises(UsageError, match="for other conditions"):
        on_gpu.answer_op(problem, Query(l2="warm"))
    with pytest.raises(UsageError, match="for other conditions"):
        next(on_gpu.answer_many([problem], Query(Objective.LATENCY, inputs="zeros")))


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


def test_recommend_many_accepts_and_returns_arrays():
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
