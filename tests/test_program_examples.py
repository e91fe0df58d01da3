"""The programs in examples/ run as their first lines say, each in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.measured_database import make_measured_database
from tests.helpers.needs import needs
from tests.helpers.paths import ROOT
from tests.helpers.process import environment

pytestmark = pytest.mark.slow


def run(home: Path, name: str, *arguments: object) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    done = subprocess.run(
        command, env=environment(XDG_DATA_HOME=str(home / "data")), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_program_has_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{program.name}"' in source for program in (ROOT / "examples").glob("*.py"))


def test_a_plan_has_every_layer_at_every_batch_size(tmp_path: Path) -> None:
    printed = run(tmp_path, "plan_linear_layers.py", "l40s", "--json", tmp_path / "plan.json")
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert len({(row["layer"], row["tokens"]) for row in plan}) == 16
    assert all(row["config"] and row["latency_s"] > 0 for row in plan)
    assert printed.count("tokens/s") == 4


@needs("cupy")
def test_a_block_size_is_chosen_for_each_gpu(tmp_path: Path) -> None:
    printed = run(tmp_path, "choose_block_size.py", "rtx3090", "h200")
    assert printed.count("limited by DRAM") == 2


@needs("xgboost", "scipy")
def test_replayed_measurements_train_a_model_that_is_evaluated(tmp_path: Path) -> None:
    make_measured_database(tmp_path / "recorded.duckdb")
    printed = run(tmp_path, "measure_and_learn.py", "--replay", tmp_path / "recorded.duckdb", "--budget", "20configs")
    assert "120 rows are new" in printed
    assert "held-out groups" in printed
