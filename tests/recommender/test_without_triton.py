"""Test that an answer without a Triton kernel states the reason."""

import pytest

from kernrec.recommender import Objective, Query, Recommender
from kernrec.util.human import Note


def lines_on_triton(
    recommender: Recommender, dtype: str, layout: str, m: int, n: int, k: int, gpu: str = "a100"
) -> list[str]:
    query = Query(Objective.LATENCY, top=3)
    answer = recommender.recommend("matmul", gpu, {"m": m, "n": n, "k": k}, dtype, layout, query)
    return [note for note in answer.notes if note.startswith("matmul_triton does not run")]


@pytest.mark.parametrize(
    ("dtype", "layout", "sizes"), [("f32", "nn", (1024, 1001, 512)), ("tf32", "nt", (1024, 512, 1001))]
)
def test_matmul_without_a_triton_kernel_states_the_requirements(recommender, dtype, layout, sizes):
    (note,) = lines_on_triton(recommender, dtype, layout, *sizes)
    assert isinstance(note, Note)
    assert "needs unaligned == 0 or dtype_bytes == 2" in note
    assert "unaligned: rows of the matrices: 0 multiples of 16 elements" in note.why


@pytest.mark.parametrize(("dtype", "layout", "sizes"), [
    ("f32", "nn", (1024, 512, 512)), ("f32", "nt", (1024, 512, 512)), ("f16", "tn", (1024, 512, 512)),
    ("bf16", "tt", (1024, 512, 512)), ("f32", "tt", (1024, 512, 512)), ("f16", "nn", (1024, 1000, 512)),
    ("f16", "nt", (1024, 1001, 512)), ("f16", "tn", (1001, 512, 512)), ("f16", "tt", (1024, 1001, 511)),
])  # fmt: skip
def test_matmul_with_a_triton_kernel_has_no_such_note(recommender, dtype, layout, sizes):
    assert lines_on_triton(recommender, dtype, layout, *sizes) == []


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("gpu", ["a100", "rtx3090", "l40s", "h100", "rtx5090"])
def test_odd_vocabulary_size_is_answered_by_triton(recommender, gpu, dtype):
    # Once, only sm_80 and sm_90 had f16 code for 50,257 columns, and bf16 took more than twice as long.
    assert lines_on_triton(recommender, dtype, "nn", 4096, 50257, 768, gpu) == []
    query = Query(Objective.LATENCY, top=1)
    dims = {"m": 4096, "n": 50257, "k": 768}
    half, brain = (recommender.recommend("matmul", gpu, dims, each, "nn", query).best for each in ("f16", "bf16"))
    assert brain.latency_s.value == pytest.approx(half.latency_s.value, rel=0.1)
