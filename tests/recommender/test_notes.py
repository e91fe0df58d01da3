"""Test that notes take one line, `--why` prints their explanations, and a missing Triton kernel is explained."""

import pytest

from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.networks.layers import NetworkRequest
from kernrec.recommender.networks.network import answer_network
from kernrec.util.human import Note
from tests.helpers.command import run

LONGEST = 100
"""Maximum characters of a note, which fits a line of most terminals."""


@pytest.mark.parametrize(("op", "gpu", "shape", "dtype", "query"), [
    ("matmul", "rtx4090", {"m": 1000, "n": 1001, "k": 999}, "f32", Query()),
    ("matmul", "t4", {"m": 512, "n": 512, "k": 512}, "bf16", Query()),
    ("matmul", "h200", {"m": 4096, "n": 4096, "k": 4096}, "bf16", Query(backends=("cuDNN",))),
    ("softmax", "rtx3090", {"rows": 512, "columns": 512}, "f32", Query(inputs="zeros")),
    ("attention", "l40s", {"heads": 8, "queries": 512, "head_dim": 64}, "f16", Query(power_limit_w=200.0)),
])  # fmt: skip
def test_notes_of_an_answer_are_short_lines(op, gpu, shape, dtype, query):
    notes = Recommender([]).recommend(op, gpu, shape, dtype, None, query).notes
    assert notes
    assert all(len(note) <= LONGEST and "\n" not in note for note in notes)


def test_notes_of_a_network_are_short_lines():
    wanted = NetworkRequest("llama-3-70b-decode", batch=4, tp=4)
    notes = answer_network(Recommender([]), "h200", wanted, Query("latency")).notes
    assert all(len(note) <= LONGEST for note in notes)
    assert any(isinstance(note, Note) and note.why for note in notes)


def test_why_option_explains_each_note(capsys):
    command = ["recommend", "--op", "softmax", "--gpu", "a100", "--shape", "rows=512,columns=512", "--top", "1"]
    printed = []
    for words in (command, [*command, "--why"]):
        assert run(words) == 0
        printed.append(capsys.readouterr())
    plain, explained = printed
    assert plain.out == explained.out
    assert "for a cold L2" not in plain.err
    assert "for a cold L2" in explained.err
    assert set(plain.err.splitlines()) < set(explained.err.splitlines())


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
