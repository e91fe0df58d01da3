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
    ("dtype", "layout", "sizes"),
    [
        ("f32", "nn", (1024, 1001, 512)),
        ("bf16", "nn", (1024, 1000, 512)),
        ("tf32", "nt", (1024, 512, 1001)),
    ],
)
def test_a_product_that_no_triton_kernel_takes_says_what_that_one_needs(
    recommender: Recommender, dtype: str, layout: str, sizes: tuple[int, int, int]
) -> None:
    # Seen before: 29 % of the recorded products had no answer by Triton, and nothing said so.
    (line,) = lines_on_triton(recommender, dtype, layout, *sizes)
    assert "needs \"unaligned == 0 or dtype == 'f16' and (sm == 80 or sm == 90)\"" in line
    assert "unaligned: rows of the matrices: 0 multiples of 16 elements" in line


@pytest.mark.parametrize(
    ("dtype", "layout", "sizes"),
    [
        ("f32", "nn", (1024, 512, 512)),
        ("f32", "nt", (1024, 512, 512)),
        ("f16", "tn", (1024, 512, 512)),
        ("bf16", "tt", (1024, 512, 512)),
        ("f32", "tt", (1024, 512, 512)),
        ("f16", "nn", (1024, 1000, 512)),
        ("f16", "nt", (1024, 1001, 512)),
        ("f16", "tn", (1001, 512, 512)),
        ("f16", "tt", (1024, 1001, 511)),
    ],
)
def test_a_product_that_triton_answers_has_no_such_line(
    recommender: Recommender, dtype: str, layout: str, sizes: tuple[int, int, int]
) -> None:
    assert lines_on_triton(recommender, dtype, layout, *sizes) == []
