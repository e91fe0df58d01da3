"""One source can be asked for alone; what it does not know is said."""

import pytest

import kernrec
from kernrec.errors import KernrecError, UsageError
from kernrec.model.prior.spread import SPREADS
from kernrec.recommender import Query, Recommender

PRODUCT = {"m": 2048, "n": 2048, "k": 2048}


@pytest.fixture(scope="module")
def recommender():
    return Recommender([])


@pytest.mark.parametrize("source", ["predicted", "learned"])
def test_every_row_and_baseline_has_the_requested_source(recommender, source):
    answer = recommender.recommend("matmul", "a100", PRODUCT, "f16", "nn", Query("latency", source=source))
    assert answer.choices
    assert {row.source for row in (*answer.choices, *answer.beside)} == {source}
    assert {line.source for line in answer.lines} <= {source}


def test_source_predicted_disables_shrinkage(recommender):
    alone, beside = (
        recommender.recommend("matmul", "rtx4090", PRODUCT, "bf16", "nt", Query("latency", source=source, top=1)).best
        for source in ("predicted", "")
    )
    assert alone.latency_s.value < beside.latency_s.value
    width = alone.latency_s.high / alone.latency_s.value
    assert any(width == pytest.approx(spread.time) for spread in SPREADS)


def test_source_learned_answers_with_baselines_only_if_needed(recommender):
    answer = recommender.recommend("matmul", "l40s", PRODUCT, "bf16", "nt", Query("latency", source="learned"))
    assert {row.source for row in (*answer.choices, *answer.lines)} == {"learned"}


def test_missing_source_is_reported(recommender):
    with pytest.raises(UsageError, match="nothing measured answers this problem on rtx4090"):
        recommender.recommend("matmul", "rtx4090", PRODUCT, "f16", "nn", Query("latency", source="measured"))
    with pytest.raises(KernrecError, match="only published estimates are wanted"):
        recommender.recommend("matmul", "rtx4090", {"m": 77, "n": 64, "k": 80}, "f16", "nn", Query(source="published"))


def test_python_and_command_line_accept_a_source(refuses):
    answer = kernrec.recommend("matmul", "h200", dtype="bf16", objective="latency", source="predicted", **PRODUCT)
    best = kernrec.recommend("matmul", "h200", dtype="bf16", objective="latency", **PRODUCT).best
    assert {row.source for row in answer.choices} == {"predicted"}
    assert answer.lines == ()
    many = kernrec.recommend_many("matmul", "h200", dtype="bf16", source="predicted", **PRODUCT)
    assert many.sources == ("predicted",)
    assert best.source in ("predicted", "learned")
    refuses(lambda: kernrec.recommend("matmul", "h200", source="predictd", **PRODUCT))


def test_unknown_source_suggests_the_nearest(refuses):
    refuses(lambda: Query(source="learnt"))


def test_source_of_0_1_0_names_its_new_name(refuses):
    refuses(lambda former: Query(source=former), ["prior", "recorded"])
