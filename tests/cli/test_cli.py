"""Test the command in real processes: standard output, standard error and exit status."""

import json
import os
import socket
import subprocess
import sys

import duckdb
import pytest

from kernrec.gpu import all_gpus
from tests.helpers.command import run_apart, run_here

MATMUL = ("recommend", "--op", "matmul", "--gpu", "rtx4090", "--shape", "m=512,n=512,k=512")


def test_recommend_prints_only_the_answer_to_stdout(tmp_path):
    done = run_apart(*MATMUL, "--json", home=tmp_path)
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert done.stderr == ""
    assert answer["gpu"] == "rtx4090"
    assert {recommendation["source"] for recommendation in answer["recommendations"]} == {"predicted"}
    # The command leaves only a cache. A second run, or one that cannot write the cache, gives the same answer.
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.parent for path in left} == {tmp_path / ".cache/kernrec/derived"}
    assert run_apart(*MATMUL, "--json", home=tmp_path).stdout == done.stdout
    assert run_apart(*MATMUL, "--json", home=tmp_path, variables={"KERNREC_CACHE": "/dev/null/x"}).stdout == done.stdout


@pytest.mark.parametrize("kind", ["gpus", "ops", "kernels"])
def test_listings_print_as_table_and_json(kind):
    rows = json.loads(run_apart("list", kind, "--json").stdout)
    shown = run_here("list", kind)
    assert shown.returncode == 0
    assert all(row["name"] in shown.stdout for row in rows)
    if kind == "gpus":
        assert {row["name"] for row in rows} == {gpu.name for gpu in all_gpus()}


def assert_one_line(done: subprocess.CompletedProcess[str], says: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("kernrec: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


@pytest.mark.slow
def test_invalid_database_is_refused_in_one_line(tmp_path, write):
    text = write("not a database" * 1000, "notes.txt")
    foreign = tmp_path / "foreign.duckdb"
    with duckdb.connect(str(foreign)) as connection:
        connection.execute("CREATE TABLE mine (x INTEGER)")
    cut = write(foreign.read_bytes()[:6000], "cut.duckdb")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for path in (text, foreign, cut, tmp_path / "missing.duckdb", tmp_path):
        assert_one_line(run_here(*MATMUL, "--db", path), path.name)
        done = run_here(*MATMUL, variables=os.environ | {"KERNREC_DB": str(path)})
        if path.exists():
            assert_one_line(done, path.name)
        else:  # the first command that stores a measurement creates the user's database
            assert done.returncode == 0
            assert f"KERNREC_DB names {path}, which does not exist yet" in done.stderr
    assert_one_line(run_apart(*MATMUL, variables={"KERNREC_DB": str(text)}), text.name)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_unreachable_path_is_refused_in_one_line():
    done = run_here(*MATMUL, "--db", "x" * 300)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kernrec: xxx")
    assert done.stderr.endswith("cannot be reached: file name too long\n")


def test_missing_or_read_only_home_is_accepted(tmp_path):
    nowhere = tmp_path / "nowhere"
    assert run_apart(*MATMUL, home=nowhere).returncode == 0
    tmp_path.chmod(0o500)
    try:
        assert run_apart(*MATMUL, home=tmp_path).returncode == 0
    finally:
        tmp_path.chmod(0o700)
    assert not nowhere.exists()


def test_closed_output_pipe_is_no_error():
    ours, theirs = socket.socketpair()
    theirs.close()
    command = [sys.executable, "-m", "kernrec", "list", "gpus", "--json"]
    done = subprocess.run(command, stdout=ours.fileno(), stderr=subprocess.PIPE, text=True, check=False)
    ours.close()
    assert (done.returncode, done.stderr) == (0, "")


def test_comparison_of_gpus_shows_the_best_config_and_the_best_baseline_of_each():
    """An earlier version omitted slower baselines, and failed on a GPU without kernels."""
    question = ("recommend", "--op", "matmul", "--shape", "m=4096,n=4096,k=4096", "--dtype", "f16")
    variables = os.environ | {"COLUMNS": "300"}
    shown = run_here(*question, "--gpu", "a100,v100,rtx4090", variables=variables).stdout
    rows = [line.split() for line in shown.splitlines()[3:-1]]
    assert [row[0] for row in rows] == [*["a100-sxm4-80gb"] * 2, "v100-sxm2-16gb", *["rtx4090"] * 2]
    kernels = [row[1].startswith("matmul_") for row in rows]
    assert kernels == [False, True, False, True, False]
    assert "The fastest is expected to be v100-sxm2-16gb with " in run_here(*question, "--gpu", "v100,p100").stdout
