"""An answer without a Triton kernel says why there is none."""

import pytest

from kernrec.recommender import Objective, Query, Recommender


@pytest.fixture(scope="module")
def recommender() -> Recommender:
    return Recommender([])


def lines_on_triton(recommender: Recommender, dtype: str, layout: str, m: int, n: int, k: int) -> list[str]:
    query = Query(Objective.LATENCY, top=3)
    answer = recommender.recommend("matmul", "a100", {"m": m, "n": n, "k": k}, dtype, layout, query)
    return [note for note in answer.notes if note.startswith("no answer by matmul_triton")]


@pytest.mark.parametrize(
    ("dtype", "layout", "sizes", "reason"),
    [
        ("f16", "tt", (1024, 512, 512), "written for layouts nn, nt, tn, not tt"),
        ("f16", "nn", (1024, 1001, 512), "n % 16 == 0"),
        ("tf32", "nt", (1024, 512, 1000), "k % 16 == 0"),
        ("bf16", "tn", (1000, 512, 512), "m % 16 == 0"),
    ],
)
def test_a_product_that_no_triton_kernel_takes_says_what_that_one_needs(
    recommender: Recommender, dtype: str, layout: str, sizes: tuple[int, int, int], reason: str
) -> None:
    # Seen before: 29 % of the recorded products had no answer by Triton, and nothing said so.
    (line,) = lines_on_triton(recommender, dtype, layout, *sizes)
    assert reason in line


@pytest.mark.parametrize(("dtype", "layout"), [("f32", "nn"), ("f32", "nt"), ("f16", "tn")])
def test_a_product_that_triton_answers_has_no_such_line(recommender: Recommender, dtype: str, layout: str) -> None:
    assert lines_on_triton(recommender, dtype, layout, 1024, 512, 512) == []
