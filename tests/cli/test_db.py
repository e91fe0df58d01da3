"""Test the `kernrec db` commands."""

import duckdb
import pytest

from kernrec.cli.app import run
from kernrec.measure.campaign.journal import Journal
from tests.helpers.sharing import measurement

CACHE = """{"device_name": "NVIDIA GeForce RTX 3090", "kernel_name": "theirs", "problem_size": [64],
"tune_params_keys": ["bx"], "tune_params": {"bx": [32, 64]}, "objective": "time", "cache": {
"32": {"bx": 32, "time": 0.0125, "timestamp": "2024-05-01 12:00:00"},
"64": {"bx": 64, "time": "CompilationFailedConfig", "timestamp": "2024-05-01 12:00:01"},
"96": {"bx": 96, "ti"""
SHAPE = ("--op", "matmul", "--shape", "m=64,n=32,k=16")


@pytest.fixture
def own(tmp_path, monkeypatch):
    path = tmp_path / "data" / "own.duckdb"
    monkeypatch.setenv("KERNREC_DB", str(path))
    return path


@pytest.fixture
def cache(write):
    return write(CACHE, "cache.json")


def test_import_stores_another_tuners_results_and_reports_them(own, cache, capsys):
    assert run(["db", "import", str(cache), *SHAPE]) == 0
    seen = capsys.readouterr()
    what = "theirs for matmul[m=64,n=32,k=16]f32,nn on NVIDIA GeForce RTX 3090"
    assert seen.out == f"{what}: 2 results (1 compile, 1 ok), best 12.5 us\n"
    assert seen.err == f"note: {cache} is cut short: 1 incomplete entry at its end was skipped\n"
    assert run(["db", "import", str(cache), *SHAPE, "--gpu", "3090"]) == 0
    assert "note: 2 of them were there already" in capsys.readouterr().err


def test_refused_import_creates_no_database(own, write, capsys):
    result = {"configuration": {"a": 1}, "times": {"runtimes": [1.0]}, "invalidity": "correct", "correctness": 1}
    document = {"schema_version": "1.0.0", "metadata": {"timeunit": "fortnights"}, "results": [result]}
    assert run(["db", "import", str(write(document, "t4.json")), *SHAPE, "--gpu", "3090", "--kernel", "k"]) == 2
    assert "unknown unit of time 'fortnights'; known: s, ms, us, ns, in full or short" in capsys.readouterr().err
    assert not own.exists()


def test_verify_reports_an_altered_row(own, cache, capsys):
    run(["db", "import", str(cache), *SHAPE])
    assert run(["db", "verify"]) == 0
    assert capsys.readouterr().out.endswith("5 rows, none was changed since it was written\n")
    with duckdb.connect(str(own)) as connection:
        connection.execute("UPDATE measurement SET latency_s = 1e-9 WHERE outcome = 'ok'")
    assert run(["db", "verify"]) == 1
    assert "1 of 5 rows" in capsys.readouterr().err


def test_imported_kernel_is_ranked_among_the_recommendations(own, cache, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    cache.write_text(CACHE.replace("0.0125", "0.0006"))
    run(["db", "import", str(cache), *SHAPE])
    capsys.readouterr()
    assert run(["recommend", "--gpu", "3090", *SHAPE]) == 0
    rows = capsys.readouterr().out.splitlines()
    (row,) = [number for number, line in enumerate(rows) if "theirs" in line]
    assert row == 3  # the first row below title, heading and rule has the fastest config
    assert "measured" in rows[row]
    assert "~1" in rows[row + 1]


def test_info_reports_measurements_waiting_in_a_journal(own, cache, capsys):
    run(["db", "import", str(cache), *SHAPE])
    with Journal(own) as journal:
        journal.append(*({"row": measurement(position=place).as_json()} for place in range(2)))
    capsys.readouterr()
    assert run(["db", "info"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"note: {journal.path} has 2 measurements, which the next `kernrec collect` stores"
    ]
