"""Test the coverage report: which requested layers are measured, published or missing on each GPU."""

import json

import pytest

from kernrec.measure.gpu_coverage import gpus_coverage
from kernrec.op import Problem, find_op
from kernrec.store import Stack
from tests.helpers.command import run_here
from tests.helpers.recording import store_rows

ROW = {"kernel": "theirs", "kernel_hash": "external:0", "config": {"x": 1}, "protocol_version": 0, "tier": "final",
       "session": "s", "measured_at": "2026-01-01", "latency_s": 1e-3, "outcome": "ok"}  # fmt: skip


def a_layer(op: str) -> Problem:
    from kernrec.measure.problems import select_layers

    return (select_layers(op, None, None, None, None) or [])[0].problem


@pytest.fixture
def path(tmp_path):
    """Return a database with a layer on two GPUs, a layer that nobody requests, and a replayed row."""
    reduce, norm, other = a_layer("reduce"), a_layer("rmsnorm"), find_op("matmul").problem(m=64, n=32, k=16)
    rows = [
        {"gpu": "l40s", "problem": reduce, "energy_j": 0.2, "power_w": 200.0, "energy_method": "x"},
        {"gpu": "rtx4090", "problem": reduce},
        {"gpu": "l40s", "problem": other, "measured_at": "2026-03-01"},
        {"gpu": "l40s", "problem": norm, "replayed": True},
    ]
    return store_rows(tmp_path / "measured.duckdb", (ROW | row for row in rows))


def test_coverage_excludes_replayed_rows_and_counts_other_problems_separately(path):
    stack = Stack([path])
    first, second = gpus_coverage(stack)[:2]
    assert (first.gpu, first.arch, first.last_measured) == ("l40s", "sm_89", "2026-03-01")
    assert (first.ops["reduce"].measured, first.ops["reduce"].energies) == (1, 1)
    assert (first.ops["matmul"].measured, first.ops["matmul"].configs) == (0, 1)
    assert first.ops["rmsnorm"].configs == 0, "a replayed row measures nothing"
    assert (second.gpu, second.ops["reduce"].configs) == ("rtx4090", 1)


def test_coverage_fits_80_columns(path, tmp_path):
    variables = {"COLUMNS": "80", "HOME": str(tmp_path), "PATH": ""}
    done = run_here("db", "info", "--coverage", "--db", path, variables=variables)
    assert done.returncode == 0
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "l40s" in done.stdout
    done = run_here("db", "info", "--coverage", "--db", path, "--json", home=tmp_path)
    cards = {card["gpu"]: card for card in json.loads(done.stdout)["gpus"]}
    assert cards["l40s"]["ops"]["reduce"]["measured"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "l40s"), "--gpu was removed; use --coverage, which lists each GPU"),
        (("--db", "none.duckdb"), "none.duckdb"),
    ],
)
def test_invalid_coverage_arguments_are_refused_in_one_line(tmp_path, arguments, message):
    done = run_here("db", "info", "--coverage", *arguments, home=tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
