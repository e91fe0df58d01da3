"""Test queries limited to one source; their answers report which data the source lacks."""

import pytest

import kernrec
from kernrec.recommender import Query

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


def test_source_of_0_1_0_names_its_new_name(refuses):
    refuses(lambda former: Query(source=former), ["prior", "recorded"])
