"""Test notes of answers, and answers as tables."""

import importlib.util
import sys

import pytest

import kernrec
from kernrec.errors import KernrecError
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
    assert "for a cold L2" in " ".join(explained.err.split())
    assert all(len(line) <= 100 for line in explained.err.splitlines() if line.startswith("    "))
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
def test_matmul_without_a_triton_kernel_notes_triton_requirements(recommender, dtype, layout, sizes):
    (note,) = lines_on_triton(recommender, dtype, layout, *sizes)
    assert isinstance(note, Note)
    assert "needs unaligned == 0 or dtype_bytes == 2" in note
    assert "unaligned: rows of the matrices: 0 multiples of 16 elements" in note.why


@pytest.mark.parametrize(("dtype", "layout", "sizes"), [
    ("f32", "nn", (1024, 512, 512)), ("f32", "nt", (1024, 512, 512)), ("f16", "tn", (1024, 512, 512)),
    ("bf16", "tt", (1024, 512, 512)), ("f32", "tt", (1024, 512, 512)), ("f16", "nn", (1024, 1000, 512)),
    ("f16", "nt", (1024, 1001, 512)), ("f16", "tn", (1001, 512, 512)), ("f16", "tt", (1024, 1001, 511)),
])  # fmt: skip
def test_matmul_with_a_triton_kernel_has_no_note_on_triton_requirements(recommender, dtype, layout, sizes):
    assert lines_on_triton(recommender, dtype, layout, *sizes) == []


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("gpu", ["a100", "rtx3090", "l40s", "h100", "rtx5090"])
def test_matmul_with_50257_columns_uses_triton_in_f16_and_bf16(recommender, gpu, dtype):
    # In an earlier version, some GPUs lacked code for 50,257 columns, and bf16 took over twice as long as f16.
    assert lines_on_triton(recommender, dtype, "nn", 4096, 50257, 768, gpu) == []
    query = Query(Objective.LATENCY, top=1)
    dims = {"m": 4096, "n": 50257, "k": 768}
    half, brain = (recommender.recommend("matmul", gpu, dims, each, "nn", query).best for each in ("f16", "bf16"))
    assert brain.latency_s.value == pytest.approx(half.latency_s.value, rel=0.1)


@pytest.fixture(scope="module")
def answer():
    return kernrec.recommend(op="matmul", gpu="a100", dtype="f16", m=2048, n=2048, k=2048, objective="latency")


@pytest.fixture(scope="module")
def network():
    return kernrec.recommend_network("bert-base", "a100")


def test_former_python_name_is_refused_with_its_replacement(answer, network):
    former = (
        (answer, "choices", "recommendations"),
        (answer, "leading_line", "leading_baseline"),
        (answer.baselines[0], "stack", "backend"),
        (network.layers[0], "pays", "worth_it"),
    )
    for part, old, new in former:
        with pytest.raises(AttributeError, match=f"has no attribute {old}; it is called {new}$"):
            getattr(part, old)
    with pytest.raises(AttributeError, match=r"has no attribute latency_s; use headline\.latency_s$"):
        network.latency_s  # noqa: B018 - reading it raises
    with pytest.raises(AttributeError, match=r"Answer has no attribute other$"):
        getattr(answer, "other")  # noqa: B009 - mypy knows that it does not exist


def test_python_names_equal_json_names(answer, network):
    assert answer.baselines
    for part in (answer, answer.best, answer.baselines[0], network, network.recommendation):
        assert not [name for name in part.as_dict() if not hasattr(part, name)]
    values = answer.best.as_dict()
    for name in ("rank", "kernel_hash", "power_limit_w", "locked_clock_hz", "energy_source", "sessions", "bottleneck"):
        assert getattr(answer.best, name) == values[name], name
    assert list(answer.best.latency_interval_s) == values["latency_interval_s"]
    assert (answer.op, answer.shape, answer.dtype) == ("matmul", {"m": 2048, "n": 2048, "k": 2048}, "f16")


def test_str_of_an_answer_is_its_table(answer, network):
    title, heading, *rows = str(answer).splitlines()
    assert title.startswith("matmul[m=2048,n=2048,k=2048]f16,nn on NVIDIA A100")
    assert len(rows) == len(answer.recommendations) + len(answer.baselines)
    start = heading.index("latency")
    assert all(row[start - 1] == " " and row[start].isdigit() for row in rows)
    assert answer.baselines[0].name in rows[len(answer.recommendations)]
    shown = str(network)
    assert all(layer.name in shown for layer in network.layers)
    assert all(total.name in shown for total in network.totals)


def test_arrow_has_the_columns_of_csv(answer, network):
    pytest.importorskip("pyarrow", reason="PyArrow is not installed")
    table = answer.to_arrow()
    rows = (*answer.recommendations, *answer.baselines)
    assert table["latency_s"].to_pylist() == [row.latency_s.value for row in rows]
    assert table["latency_low_s"].to_pylist() == [row.latency_s.low for row in rows]
    assert table["backend"].to_pylist() == [None] * len(answer.recommendations) + [
        baseline.backend for baseline in answer.baselines
    ]
    assert network.to_arrow()["count"].to_pylist() == [layer.count for layer in network.layers]
    many = kernrec.recommend_many("softmax", "a100", rows=[1024, 4096], columns=1024).to_arrow()
    assert many["problem"].to_pylist()[1] == "softmax[rows=4096,columns=1024]f32,row"
    if importlib.util.find_spec("polars") is None:
        return
    import polars

    assert polars.from_arrow(table)["gpu"].unique().to_list() == ["a100-sxm4-80gb"]


def test_missing_pyarrow_is_one_clear_line(answer, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(KernrecError, match=r"needs pyarrow: install it with .*\[arrow\]"):
        answer.to_arrow()
