"""Test `recommend` on whole networks and for serving a model: tables, output formats, and one-line errors."""

import csv
import io
import json

import pytest

from kernrec.cli.app import run
from tests.helpers.models import LLAMA_3_8B
from tests.helpers.serving import written

DECODE = ("--workload", "llama-3-8b-decode")


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("KERNREC_DB", raising=False)


@pytest.mark.parametrize("op", ["conv", "matmul", "attention"])
def test_first_screen_fits_80_columns_with_totals_first(op, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["recommend", "--op", op, "--gpu", "rtx4090"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 60
    places = [next(n for n, line in enumerate(lines) if line.startswith(start)) for start in ("runs ", "layer ")]
    assert places == sorted(places)
    assert lines[-1].startswith("next: --power-limit sweep")


def test_sweep_marks_its_knee_and_explains_it_in_one_sentence(capsys):
    assert run(["recommend", *DECODE, "--gpu", "h200", "--power-limit", "sweep", "--max-slowdown", "3%"]) == 0
    out = capsys.readouterr().out
    (marked,) = [line for line in out.splitlines() if line.strip().startswith("best ")]
    assert "knee" not in out
    limit = marked.split()[1]
    assert f"At {limit} W: " in out
    assert (
        run(["recommend", "--op", "mm", "--shape", "m=64,n=64,k=64", "--gpu", "l4", "--clock", "sweep", "--json"]) == 0
    )
    assert sum(row["knee"] for row in json.loads(capsys.readouterr().out)["rows"]) == 1


def test_network_regret_lies_between_lowest_and_highest_layer_regret(capsys):
    assert run(["recommend", *DECODE, "--gpu", "h200", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    regrets = [layer["regret"]["latency"]["expected"] for layer in answer["layers"]]
    assert min(regrets) <= answer["regret"]["latency"]["expected"] <= max(regrets)


def test_gpus_are_compared_in_one_table(capsys):
    assert run(["recommend", *DECODE, "--gpu", "h200,l40s"]) == 0
    out = capsys.readouterr().out
    assert "NVIDIA H200 is expected to be the fastest" in out
    problem = ["recommend", "--op", "mm", "--dtype", "f16", "--shape", "m=4096,n=4096,k=4096", "--gpu", "h200,l40s"]
    assert run(problem) == 0
    out = capsys.readouterr().out
    rows = [line.split()[0] for line in out.splitlines() if line.startswith(("h200-sxm ", "l40s "))]
    assert rows == ["h200-sxm", "h200-sxm", "l40s", "l40s"]  # per GPU: kernel, baseline
    assert "The fastest is expected to be h200-sxm with" in out
    shape = "batch=8,heads=32,kv_heads=8,queries=1,keys=8192,head_dim=128"
    problem = ["recommend", "--op", "attention", "--shape", shape, "--gpu", "h100,l40s,l4", "--dtype"]
    assert run([*problem, "bf16"]) == 0
    assert "learned, data in L2" in capsys.readouterr().out
    assert run([*problem, "fp8"]) == 0
    printed = capsys.readouterr()
    assert "l4 " not in printed.out
    assert "note: l4 is left out: no kernel implements attention" in printed.err
    for gpus, more, listed in (("h200,l4", 0, ["h200-sxm"]), ("h200,h100", 1, 2 * ["h200-sxm"] + 2 * ["h100-sxm"])):
        assert run([*problem[:5], "--dtype", "fp8", "--json", *("--shape", shape) * more, "--gpu", gpus]) == 0
        assert [answer["gpu"] for answer in json.loads(capsys.readouterr().out)] == listed


@pytest.mark.parametrize("words", [
    ("--op", "mm", "--shape", "m=64,n=64,k=64", "--shape", "m=128,n=64,k=64"), ("--workload", "bert-base"),
    ("--workload", "bert-base", "--power-limit", "sweep"),
])  # fmt: skip
def test_note_shared_by_several_answers_prints_once(words, capsys):
    assert run(["recommend", "--gpu", "l4,t4", *words]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert sum(note.startswith("note: source predicted") for note in notes) == 1
    assert len(notes) == len(set(notes))


@pytest.fixture
def question(tmp_path):
    model = written(tmp_path / "Llama-3-8B", LLAMA_3_8B) / "config.json"
    words = ["--gpu", "l40s,h100", "--backend", "vllm", "--batch", "1,128", "--context", "8k"]
    return ["recommend", "--workload", str(model), *words]


def test_one_table_has_every_gpu_and_batch_size(question, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(question) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("Llama-3-8B decode, token 8192 in bf16, vLLM today,")
    heading = next(line for line in lines if line.startswith("GPU "))
    assert heading.split()[:6] == ["GPU", "batch", "fits", "ms/token", "J/token", "tokens/s"]
    assert "best limit [W]" in heading
    assert "power [W]" in heading
    assert "default power limit" in " ".join(lines[:2])
    rows = [line.split() for line in lines if line.startswith(("l40s", "h100"))]
    assert [row[:3] for row in rows] == [
        ["l40s", "1", "yes"], ["l40s", "128", "no"], ["h100-sxm", "1", "yes"], ["h100-sxm", "128", "no"],
    ]  # fmt: skip
    assert len(rows[1]) == 3  # a model that does not fit gets no time
    assert sum("needs 155 GB" in line for line in lines) == 2
    assert sum("mlp gate_up_proj" in line for line in lines) == 2


def test_json_and_csv_have_the_same_rows_as_the_table(question, capsys):
    assert run([*question, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    fits = {(row["gpu"], row["batch"]): row["fits"] for row in answer["gpus"]}
    assert fits == {("l40s", 1): True, ("l40s", 128): False, ("h100-sxm", 1): True, ("h100-sxm", 128): False}
    row = answer["gpus"][0]
    assert row["name"] == "vLLM today"
    assert row["rate_per_s"] == pytest.approx(1 / row["latency_s"])
    assert row["energy_per_unit_j"] == pytest.approx(row["energy_j"])
    assert 100 <= row["best_power_limit_w"] <= 350
    assert row["memory"]["weights_bytes"] == pytest.approx(16.06e9, rel=1e-3)
    assert row["dominant_layers"][0]["layer"] == "mlp gate_up_proj"
    assert run([*question, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [each["fits"] for each in rows] == ["True", "False", "True", "False"]
    assert rows[1]["latency_s"] == ""


def test_gpu_with_too_little_memory_gets_a_row_without_a_time(capsys):
    seventy = ("--workload", "llama-3-70b-decode")
    assert run(["recommend", *seventy, "--gpu", "rtx4090"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "does not fit: it needs 143 GB (weights 141 GB" in shown.err
    assert "it fits with --tp 8" in shown.err
    for words in (("--power-limit", "sweep"), ("--json",)):
        assert run(["recommend", *seventy, "--gpu", "rtx4090", *words]) == 1
        assert capsys.readouterr().out == ""
    assert run(["recommend", *seventy, "--gpu", "rtx4090,h200,l4"]) == 0
    shown = capsys.readouterr()
    assert "needs 143 GB, has 25.8 GB; fits with --tp 8" in shown.out
    assert "is expected to be" not in shown.out  # only one GPU fits, so there is no ranking
