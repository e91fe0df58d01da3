"""Test requests, their operating points, and queries limited to one source."""

import pickle

import pytest

import kernrec
from kernrec.errors import UsageError
from kernrec.gpu import all_gpus, find_gpu
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.answer import NO_LOSS, WORTH_SAYING
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.request import CLOCKS, Request, clocks, lower_limits, objective_named, op_points


def test_objective_accepts_text_and_refuses_unknown_names(refuses):
    assert Query("energy").objective is Objective.ENERGY  # type: ignore[arg-type]
    assert objective_named("edp") is Objective.EDP
    refuses(lambda: objective_named("latenzy"))


def test_request_names_an_op_or_a_kernel():
    for names in ({}, {"op": "matmul", "kernel": "matmul_simt"}):
        with pytest.raises(UsageError, match="either an op or a kernel"):
            Request("a100", **names)  # type: ignore[arg-type]
    assert Request("a100", "matmul", shape="m=1,n=2,k=3").dims == {"m": 1, "n": 2, "k": 3}


ROWS = {"rows": 8192, "columns": 4096}


def test_sweep_limits_are_valid_and_below_the_default():
    for gpu in all_gpus():
        limits = [point.power_limit_w or 0.0 for point in lower_limits(gpu)]
        assert limits == sorted(set(limits))
        assert all(gpu.power_min_w <= limit < gpu.tdp_w for limit in limits)


def test_power_limits_are_swept_only_for_energy_objectives():
    gpu = find_gpu("a100")
    assert op_points(gpu, Query(Objective.LATENCY)) == (DEFAULT_POINT,)
    assert op_points(gpu, Query(power_limit_w=300.0)) == (OperatingPoint(300.0),)
    assert op_points(gpu, Query(clock_hz=1.2e9)) == (OperatingPoint(None, 1.2e9),)
    for objective in (Objective.PARETO, Objective.ENERGY, Objective.EDP):
        assert op_points(gpu, Query(objective)) == (DEFAULT_POINT, *lower_limits(gpu))
    locked = op_points(gpu, Query(power_limit_w=300.0, clocks=True))
    assert locked == (OperatingPoint(300.0), *clocks(gpu, 300.0))
    assert len(locked) == 1 + CLOCKS


def test_lower_limit_saves_energy_for_memory_bound_problems(recommender):
    answer = recommender.recommend("softmax", "a100", ROWS, query=Query(Objective.ENERGY))
    fixed = recommender.recommend("softmax", "a100", ROWS, query=Query(Objective.ENERGY, power_limit_w=400.0))
    assert answer.best.power_limit_w < 400.0 == fixed.best.power_limit_w
    assert answer.best.energy_j.value < 0.9 * fixed.best.energy_j.value
    assert answer.best.as_dict()["power_limit_w"] == answer.best.power_limit_w


def test_requesting_a_recommended_power_limit_returns_equal_costs(recommender):
    query = Query(Objective.PARETO, top=8)
    for recommendation in recommender.recommend(
        "matmul", "a100", "m=16,n=4096,k=4096", "f16", "nt", query
    ).recommendations:
        at_limit = Query(Objective.LATENCY, power_limit_w=recommendation.power_limit_w, top=1000)
        there = recommender.recommend("matmul", "a100", "m=16,n=4096,k=4096", "f16", "nt", at_limit).recommendations
        (same,) = [c for c in there if (c.kernel.name, c.config) == (recommendation.kernel.name, recommendation.config)]
        assert (same.latency_s, same.energy_j, same.power_w) == (
            recommendation.latency_s,
            recommendation.energy_j,
            recommendation.power_w,
        )
        assert same.clock_hz == recommendation.clock_hz


def test_energy_saving_without_slowdown_is_reported_for_every_objective(recommender):
    swept = recommender.recommend("softmax", "a100", ROWS).saving
    single = recommender.recommend("softmax", "a100", ROWS, query=Query(Objective.LATENCY)).saving
    assert swept is not None
    assert single is not None
    assert single.energy_saved == pytest.approx(swept.energy_saved, abs=0.15)  # the two requests try different limits
    assert single.slowdown <= NO_LOSS
    assert swept.power_limit_w < 400.0
    assert swept.slowdown <= NO_LOSS
    assert swept.energy_saved >= WORTH_SAYING
    for point in ({"power_limit_w": 300.0}, {"clock_hz": 1.2e9}):
        assert recommender.recommend("softmax", "a100", ROWS, query=Query(**point)).saving is None  # type: ignore[arg-type]


def test_clocks_are_swept_on_request(recommender):
    shape = {"m": 4096, "n": 4096, "k": 4096}
    without = recommender.recommend("matmul", "a100", shape, "f16", query=Query(Objective.ENERGY)).best
    best = recommender.recommend("matmul", "a100", shape, "f16", query=Query(Objective.ENERGY, clocks=True)).best
    assert best.energy_j.value <= without.energy_j.value
    assert without.point.clock_hz is None
    locked = kernrec.recommend(
        "matmul", "a100", dtype="f16", objective="energy", clocks=True, power_limit_w=400.0, **shape
    )
    assert locked.best.power_limit_w == 400.0
    assert locked.best.as_dict()["locked_clock_hz"] == locked.best.point.clock_hz is not None


def test_max_power_selects_the_same_config_as_an_equal_power_limit(recommender):
    shape = {"m": 4096, "n": 4096, "k": 4096}
    query = Query(Objective.LATENCY, max_power_w=250.0, top=1)
    best = recommender.recommend("matmul", "rtx4090", shape, "f16", "nn", query).best
    assert best.power_limit_w == 250.0
    assert best.power_w <= 250.0 * (1 + 1e-9)
    limited = Query(Objective.LATENCY, power_limit_w=250.0, top=1)
    assert best.latency_s == recommender.recommend("matmul", "rtx4090", shape, "f16", "nn", limited).best.latency_s
    assert op_points(find_gpu("rtx4090"), Query(Objective.LATENCY, max_power_w=5000.0)) == (DEFAULT_POINT,)


PRODUCT = {"m": 2048, "n": 2048, "k": 2048}


@pytest.mark.parametrize("source", ["predicted", "learned"])
def test_every_row_and_baseline_has_the_requested_source(recommender, source):
    answer = recommender.recommend("matmul", "a100", PRODUCT, "f16", "nn", Query("latency", source=source))
    assert answer.recommendations
    assert {row.source for row in (*answer.recommendations, *answer.beside)} == {source}
    assert {baseline.source for baseline in answer.baselines} <= {source}


def test_python_and_command_line_accept_a_source(refuses):
    answer = kernrec.recommend("matmul", "h200", dtype="bf16", objective="latency", source="predicted", **PRODUCT)
    best = kernrec.recommend("matmul", "h200", dtype="bf16", objective="latency", **PRODUCT).best
    assert {row.source for row in answer.recommendations} == {"predicted"}
    assert answer.baselines == ()
    many = kernrec.recommend_many("matmul", "h200", dtype="bf16", source="predicted", **PRODUCT)
    assert many.sources == ("predicted",)
    assert best.source in ("predicted", "learned")
    refuses(lambda: kernrec.recommend("matmul", "h200", source="predictd", **PRODUCT))


def test_source_name_of_release_0_1_0_is_refused_with_its_replacement(refuses):
    refuses(lambda former: Query(source=former), ["prior", "recorded"])


def test_pickled_query_and_problem_contain_no_hash():
    for value in (Query(), find_op("softmax").problem("f16", rows=2, columns=3)):
        hash(value)  # Hashes of text differ between processes.
        copy = pickle.loads(pickle.dumps(value))
        assert (copy == value, "_hash" in vars(value), "_hash" in vars(copy)) == (True, True, False)


def test_largest_number_of_results_returns_all_configs():
    query = Query(Objective.LATENCY, top=2**63, each_config=True)
    answer = Recommender([]).recommend("transpose", "a100", "rows=1024,columns=1024", query=query)
    assert 1 < len(answer.recommendations) <= answer.candidates
