"""Test the `kernrec collect` and `kernrec doctor` commands."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernrec.measure.campaign.journal import journal_path
from kernrec.store import Database
from tests.helpers.command import run_apart, run_here
from tests.helpers.needs import needs
from tests.helpers.recording import make_recording
from tests.helpers.sharing import measured_rows

HERE = {k: v for k, v in os.environ.items() if not k.startswith(("KERNREC_", "XDG_"))}


NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
without_gpu = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU here")


def replaying(recording: Path, database: Path, *more: object) -> list[object]:
    return ["collect", "--replay", recording, "--db", database, *more]


@pytest.mark.slow
def test_replayed_campaign_prints_a_summary_and_writes_a_database(tmp_path):
    recording, database = make_recording(tmp_path / "r.duckdb", 40), tmp_path / "k.duckdb"
    done = run_apart(*replaying(recording, database, "--strategy", "quick"), home=tmp_path, variables=NO_GPU)
    assert done.returncode == 0, done.stderr
    assert " replayed\n" in done.stdout
    assert " measured" not in done.stdout
    assert "4 constraint, such as: too many threads" in done.stdout
    assert f"{len(measured_rows(database))} rows are new in {database}" in done.stdout
    assert "x=39" not in done.stdout
    assert "screen 1/40" in done.stderr
    assert not journal_path(database).exists()


@pytest.mark.every(3)
@pytest.mark.slow
def test_ctrl_c_keeps_finished_measurements(tmp_path):
    recording, database = make_recording(tmp_path / "r.duckdb", 1000, energy=False), tmp_path / "k.duckdb"
    arguments = replaying(recording, database, "--strategy", "exhaustive")
    process = subprocess.Popen(
        [sys.executable, "-m", "kernrec", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=HERE | {"HOME": str(tmp_path)},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "screen" in line:
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "kernrec: interrupted; finished measurements are kept"
    stored = len(measured_rows(database))
    assert 0 < stored < 1000
    assert f"{stored} rows are new in {database}" in out
    assert "Traceback" not in err


def test_database_of_a_newer_version_stays_unchanged(tmp_path):
    import duckdb

    recording, database = make_recording(tmp_path / "r.duckdb", 10), tmp_path / "k.duckdb"
    Database.open(database, read_only=False, create=True).close()
    with duckdb.connect(str(database)) as connection:
        connection.execute("INSERT INTO migration SELECT max(id) + 1, 'of_the_future', now() FROM migration")
    done = run_here(*replaying(recording, database), home=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "made by a newer kernrec" in done.stderr


@without_gpu
@needs("pynvml")
def test_collect_without_a_gpu_explains_the_alternatives(tmp_path):
    done = run_apart("collect", "--op", "matmul", "--shape", "m=64,n=64,k=64", home=tmp_path, variables=NO_GPU)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "--replay works without" in done.stderr


@without_gpu
def test_doctor_without_a_gpu_fails_and_lists_missing_parts(tmp_path):
    done = run_apart("doctor", "--json", home=tmp_path, variables=NO_GPU)
    diagnosis = json.loads(done.stdout)
    assert done.returncode == 1
    assert diagnosis["measures"] == diagnosis["gpus"] == []
    assert len(diagnosis["problems"]) >= 1
    assert "does not exist yet" in diagnosis["database"]
