"""Test recommendations from the shipped database, their costs, comparisons and shared ranks."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.gpu import all_gpus, find_gpu
from kernrec.model.analytical.spread import SOURCES
from kernrec.op import find_op
from kernrec.recommender import Answer, Objective, Query, Recommender, Request
from kernrec.recommender.answer import answer, build_recommendation
from kernrec.recommender.candidates import candidate_set
from kernrec.recommender.estimate.costs import MEASURED, kinds_of
from kernrec.recommender.estimate.costs import PREDICTED as PREDICTED_SOURCE
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.space import Space
from kernrec.recommender.explain.report import report
from kernrec.recommender.select import bounds_of
from kernrec.store import shipped_profiles
from tests.helpers.depth import DEEP, few_examples
from tests.helpers.engine_objects import candidates as engine_candidates
from tests.helpers.work import entered

SQUARE = {"m": 4096, "n": 4096, "k": 4096}
CONV = {"c": 64, "h": 56, "w": 56, "k": 64, "r": 3, "s": 3, "padding": 1}
matmuls = st.fixed_dictionaries({d: st.integers(1, 5000) for d in "mnk"})
convs = st.fixed_dictionaries(
    {
        "n": st.integers(1, 16), "c": st.integers(1, 300), "h": st.integers(5, 120), "w": st.integers(5, 120),
        "k": st.integers(1, 300), "r": st.sampled_from([1, 3, 5]), "s": st.sampled_from([1, 3, 5]),
        "stride": st.integers(1, 2), "padding": st.integers(0, 2),
    }
)  # fmt: skip


PREDICTED = [gpu for gpu in all_gpus() if gpu.sm >= 75]
"""GPUs for which kernels can be compiled."""


STREAMING = [
    ("matvec", {"m": 14336, "k": 4096}), ("matvec", {"m": 4096, "k": 14336, "n": 8}),
    ("softmax", {"rows": 24576, "columns": 1024}), ("layernorm", {"rows": 16384, "columns": 768}),
    ("rmsnorm", {"rows": 8192, "columns": 4096}), ("reduce", {"rows": 4096, "columns": 8192}),
    ("transpose", {"rows": 8192, "columns": 4096}), ("elementwise", {"n": 1 << 25}),
]  # fmt: skip


@pytest.mark.every(6)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("op", "shape"), STREAMING, ids=[f"{op}-{len(shape)}" for op, shape in STREAMING])
def test_streaming_op_is_predicted_near_the_bandwidth_of_every_gpu(recommender, op, shape, dtype):
    turn = STREAMING.index((op, shape))
    for gpu in PREDICTED if DEEP else PREDICTED[turn :: len(STREAMING)]:
        answer = recommender.recommend(op, gpu.name, shape, dtype, query=Query(Objective.LATENCY, top=1))
        floor_s = answer.problem.bytes / gpu.memory_bandwidth
        assert floor_s < answer.best.latency_s.value < 4 * floor_s + 10e-6, gpu.name


@pytest.mark.parametrize(
    ("op", "dtype", "shape"), [("matmul", "f32", SQUARE), ("matmul", "f16", SQUARE), ("conv2d", "f32", CONV)]
)
@pytest.mark.parametrize("name", ["a100", "rtx3090", "rtx5090"])
def test_no_recommendation_spills(recommender, op, dtype, shape, name):
    for objective in ("latency", "energy"):
        answer = recommender.recommend(op, name, shape, dtype, query=Query(Objective(objective), top=40))
        for recommendation in answer.recommendations:
            table = shipped_profiles(recommendation.kernel.name, recommendation.kernel.hash, answer.gpu.sm)[0]
            spilled = dict(zip(table.variant_keys, table.spill_bytes.tolist(), strict=True))
            assert (
                spilled[
                    recommendation.kernel.variant_key(
                        recommendation.config, answer.problem.dtype, answer.problem.layout
                    )
                ]
                == 0
            )


@few_examples(15)
@given(
    st.one_of(matmuls.map(lambda d: ("matmul", d)), convs.map(lambda d: ("conv2d", d))), st.sampled_from(["t4", "3090"])
)
def test_best_of_shortlist_is_nearly_as_good_as_the_best(recommender, problem, gpu):
    op, dims = problem
    chosen = find_op(op).problem(**dims)
    short = {
        o: recommender.recommend(op, gpu, dims, layout=chosen.layout, query=Query(Objective(o), top=1)).best
        for o in ("latency", "energy")
    }
    whole = candidate_set(recommender.context.on(find_gpu(gpu)).space(chosen, whole=True), chosen, [DEFAULT_POINT])
    assert short["latency"].latency_s.value <= whole.latency_s.min() * 1.08
    assert short["energy"].energy_j.value <= whole.energy_j.min() * 1.08


def test_recommendation_minimizes_the_requested_objective(recommender):
    best = {
        o: recommender.recommend("conv", "3080", CONV, query=Query(Objective(o))).best
        for o in ("latency", "energy", "edp")
    }
    assert best["latency"].latency_s.value == min(b.latency_s.value for b in best.values())
    assert best["energy"].energy_j.value == min(b.energy_j.value for b in best.values())
    products = {o: b.latency_s.value * b.energy_j.value for o, b in best.items()}
    assert products["edp"] == min(products.values())


def at_limit(recommender: Recommender, limit_w: float) -> Answer:
    query = Query(Objective.LATENCY, top=1, power_limit_w=limit_w)
    return recommender.recommend("matmul", "rtx3090", SQUARE, query=query)


@pytest.mark.parametrize("shape", [{"m": 1, "n": 1, "k": 1}, {"m": 1, "n": 8192, "k": 1}, {"m": 3, "n": 1, "k": 99991}])
def test_matmul_with_tiny_dimensions_has_an_answer(recommender, shape):
    assert recommender.recommend("matmul", "t4", shape).best.latency_s.value > 0


def test_impossible_query_is_refused(refuses):
    refuses(lambda change: Query(**change), [
        {"objective": "speed"}, {"top": 0}, {"max_slowdown": -0.1}, {"max_slowdown": "3%"}, {"max_power_w": "250W"},
        {"power_limit_w": "250W"}, {"clock_hz": "1GHz"}, {"max_power_w": 0.0},
    ])  # fmt: skip


def test_power_limit_below_the_lowest_clock_is_met_by_pausing(recommender):
    answer = at_limit(recommender, 100.0)
    assert answer.best.power_w <= 100.0
    assert any("100 W is less than" in note for note in answer.notes)
    assert not any("is less than" in note for note in at_limit(recommender, 300.0).notes)
    request = Request("rtx3090", "matmul", shape=SQUARE, query=Query(Objective.LATENCY, power_limit_w=100.0))
    assert any("100 W is less than" in note for note in report(request, recommender.context, {}).notes)


def test_note_explains_long_runs_at_the_power_limit(recommender):
    slowed, free = at_limit(recommender, 250.0), at_limit(recommender, 450.0)
    assert (slowed.best.bottleneck, free.best.bottleneck != "power limit") == ("power limit", True)
    assert [any("a second or longer" in note for note in answer.notes) for answer in (slowed, free)] == [True, False]
    assert slowed.best.long_run_latency_s == slowed.best.latency_s.value


def test_long_runs_with_random_inputs_are_slower_than_short_runs(recommender):
    shape = dict.fromkeys("mnk", 8192)
    for gpu, least, most in (("h200-sxm", 1.1, 1.25), ("b200", 1.05, 1.3), ("l40s", 1.15, 1.4), ("rtx3090", 1.0, 1.0)):
        answer = recommender.recommend("matmul", gpu, shape, "bf16", query=Query(Objective.LATENCY))
        best = answer.best
        assert least <= best.long_run_latency_s / best.latency_s.value <= most, gpu
        assert any("longer runs are slower" in note for note in answer.notes) == (least > 1.0)
    zeros = recommender.recommend("matmul", "h200-sxm", shape, "bf16", query=Query(Objective.LATENCY, inputs="zeros"))
    assert zeros.best.long_run_latency_s == zeros.best.latency_s.value


def test_limit_above_the_reference_is_accepted_with_a_note_only_on_geforce(recommender):
    answer = at_limit(recommender, 450.0)
    assert answer.best.power_w > 350.0
    assert any(note == "assumed: the NVIDIA GeForce RTX 3090 accepts 100 to 350 W" for note in answer.notes)
    above = recommender.recommend("matmul", "rtx3090", SQUARE, query=Query(Objective.LATENCY, power_limit_w=500.0))
    assert above.power_limit_w == 500.0  # any limit is accepted if the range is unknown
    stated = recommender.recommend("matmul", "rtx5060ti-16gb", SQUARE, query=Query(power_limit_w=200.0))
    assert any("above the 180 W of the reference" in note for note in stated.notes)
    with pytest.raises(UsageError, match="accepts 150 to 243 W"):
        recommender.recommend("matmul", "rtx5060ti-16gb", SQUARE, query=Query(power_limit_w=300.0))
    with pytest.raises(UsageError, match="accepts 100 to 300 W"):
        recommender.recommend("matmul", "rtx-a6000", SQUARE, query=Query(power_limit_w=350.0))


@pytest.fixture(scope="module")
def candidates(recommender):
    problem, gpu = find_op("matmul").problem(m=512, n=512, k=512), find_gpu("a100")
    points = [DEFAULT_POINT, OperatingPoint(200.0)]
    return candidate_set(Space(recommender.context.on(gpu).tables(problem), whole=True), problem, points)


def test_recommendation_at_a_lower_limit_is_compared_with_the_default(candidates):
    position = candidates.fastest
    recommendation = build_recommendation(candidates, 1, position)
    latency, energy = candidates.latency_s[:, position], candidates.energy_j[:, position]
    assert recommendation.power_limit_w == 200.0
    assert recommendation.versus_fastest.slowdown == latency[1] / latency[0] - 1.0
    assert recommendation.versus_fastest.energy_saved == 1.0 - energy[1] / energy[0]


@pytest.mark.parametrize("pick", [(2, 0), (-1, 0), (0, -1), (0, 1 << 40)])
def test_selecting_an_index_outside_the_candidates_is_refused(candidates, pick):
    with pytest.raises((ValueError, IndexError)):
        build_recommendation(candidates, *pick)


def test_predicted_configs_have_an_approximate_rank(candidates):
    query = Query(Objective.LATENCY, top=3, each_config=True)
    recommendations = answer(candidates.at(0), query).recommendations
    assert [recommendation.place for recommendation in recommendations] == ["~1", "~2", "~3"]
    assert recommendations[0].latency_s.low < recommendations[0].latency_s.value < recommendations[0].latency_s.high


class Place(NamedTuple):
    number: int
    exact: bool
    ambiguous: bool


def places(intervals: list[tuple[float, float]], exact: list[bool]) -> list[Place]:
    if not intervals:
        return []
    low, high = np.array(intervals).T
    value, source = (low + high) / 2.0, np.where(exact, MEASURED, PREDICTED_SOURCE)
    kinds = np.stack([kinds_of(value / low, high / value, source, np.zeros(len(low)))] * 2)
    bounds = bounds_of(Query(Objective.LATENCY, top=len(low)))
    rows, *_ = engine_candidates(value[None], value[None], kinds).recommended(bounds, 0, True, True, False, SOURCES)
    return [Place(*row[4:7]) for row in rows]


def test_configs_share_a_rank_if_they_overlap_the_best_interval(candidates):
    ranks = places([(1.0, 1.2), (1.1, 1.3), (1.25, 1.4), (2.0, 3.0)], [True] * 4)
    best = build_recommendation(candidates, 0, 0)
    shown = [replace(best, rank=number, exact=True, ambiguous=tied).place for number, _, tied in ranks]
    assert shown == ["1=", "1=", "3", "4"]


@given(st.lists(st.tuples(st.floats(1, 2), st.floats(0, 0.3), st.booleans()), max_size=12))
def test_exact_ranks_never_decrease(drawn):
    ordered = sorted(drawn)
    intervals = [(value - width, value + width) for value, width, _ in ordered]
    ranks = places(intervals, [exact for *_, exact in ordered])
    numbers = [place.number for place in ranks]
    assert not numbers or numbers[0] == 1
    exact = [place.number for place in ranks if place.exact]
    assert exact == sorted(exact)
    for number, place in enumerate(ranks, start=1):
        assert place.number <= number
        assert place.exact or place.number == number
        if place.number < number:
            assert place.ambiguous
            assert ranks[place.number - 1].ambiguous


def test_repeated_query_calls_few_functions_that_take_the_gpu(recommender):
    for rows in (1024, 2048, 4096):
        recommender.recommend("matmul", "h200", SQUARE | {"m": rows}, "f16", "nt")
    functions = entered(lambda: recommender.recommend("matmul", "h200", SQUARE | {"m": 3072}, "f16", "nt"), "gpu")
    assert len(functions) <= 20, functions


def test_impossible_limit_is_refused_even_if_no_kernel_runs_the_problem(recommender):
    query = Query(Objective.LATENCY, power_limit_w=200.0)
    with pytest.raises(UsageError, match="accepts 60 to 70 W"):
        recommender.recommend("matmul", "t4", {"m": 7, "n": 16, "k": 1024}, "w4a16", "nt", query)
