"""Test `recommend` on whole networks: tables, output formats, and one-line errors."""

import json

import pytest

from kernrec.cli.app import run

DECODE = ("--workload", "llama-3-8b-decode")
H200 = (*DECODE, "--gpu", "h200")


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("KERNREC_DB", raising=False)


def test_workload_without_an_op_gets_every_layer_totals_and_the_dtype(capsys):
    assert run(["recommend", *DECODE, "--gpu", "h200"]) == 0
    shown = capsys.readouterr()
    assert "in bf16 on NVIDIA H200" in shown.out
    for word in ("kernrec, lowest energy", "occupancy heuristic", "323 layers", "vLLM today"):
        assert word in shown.out
    assert "total intervals assume fully correlated errors" in shown.err


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


def test_regret_of_network_lies_between_those_of_its_layers(capsys):
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


@pytest.mark.parametrize("words", [
    ("--op", "mm", "--shape", "m=64,n=64,k=64", "--shape", "m=128,n=64,k=64"), ("--workload", "bert-base"),
    ("--workload", "bert-base", "--power-limit", "sweep"),
])  # fmt: skip
def test_note_shared_by_several_answers_prints_once(words, capsys):
    assert run(["recommend", "--gpu", "l4,t4", *words]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert sum(note.startswith("note: source predicted") for note in notes) == 1
    assert len(notes) == len(set(notes))
