"""Test that notes take one line and `--why` prints their explanations."""

import pytest

from kernrec.recommender import Query, Recommender
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
