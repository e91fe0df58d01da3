"""Test answers in Python as a line, a table, HTML and Arrow, with the names used in JSON."""

import importlib.util
import sys
from typing import Any

import pytest

import kernrec
from kernrec.errors import KernrecError


@pytest.fixture(scope="module")
def answer():
    return kernrec.recommend(op="matmul", gpu="a100", dtype="f16", m=2048, n=2048, k=2048, objective="latency")


@pytest.fixture(scope="module")
def network():
    return kernrec.recommend_network("bert-base", "a100")


def missing(answer: Any) -> list[str]:
    """Return the JSON names of an answer that are not attributes of it."""
    return [name for name in answer.as_dict() if not hasattr(answer, name)]


def test_former_name_is_refused_with_its_replacement(answer, network):
    former = (
        (answer, "choices", "recommendations"),
        (answer, "leading_line", "leading_baseline"),
        (answer.baselines[0], "stack", "backend"),
        (network.layers[0], "pays", "worth_it"),
    )
    for part, old, new in former:
        with pytest.raises(AttributeError, match=f"has no attribute {old}; it is called {new}$"):
            getattr(part, old)
    with pytest.raises(AttributeError, match=r"Answer has no attribute other$"):
        getattr(answer, "other")  # noqa: B009 - mypy knows that it does not exist


def test_python_names_equal_json_names(answer, network):
    assert answer.baselines
    for part in (answer, answer.best, answer.baselines[0], network, network.recommendation):
        assert not missing(part)
    values = answer.best.as_dict()
    for name in ("rank", "kernel_hash", "power_limit_w", "locked_clock_hz", "energy_source", "sessions", "bottleneck"):
        assert getattr(answer.best, name) == values[name], name
    assert list(answer.best.latency_interval_s) == values["latency_interval_s"]
    assert (answer.op, answer.shape, answer.dtype) == ("matmul", {"m": 2048, "n": 2048, "k": 2048}, "f16")


def test_str_is_the_table(answer, network):
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
