"""Test that the programs in examples/ run as their first lines state, each in a separate process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command import environment
from tests.helpers.needs import needs
from tests.helpers.paths import ROOT
from tests.helpers.recording import make_measured_database

pytestmark = pytest.mark.slow


def run(home: Path, name: str, *arguments: object) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    done = subprocess.run(
        command, env=environment(XDG_DATA_HOME=str(home / "data")), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_program_has_a_test():
    source = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{program.name}"' in source for program in (ROOT / "examples").glob("*.py"))


def test_example_plan_has_every_layer_at_every_batch_size(tmp_path):
    printed = run(tmp_path, "plan_linear_layers.py", "l40s", "--json", tmp_path / "plan.json")
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert len({(row["layer"], row["tokens"]) for row in plan}) == 16
    assert all(row["config"] and row["latency_s"] > 0 for row in plan)
    assert printed.count("tokens/s") == 4


@pytest.mark.every(3)
@needs("cupy")
def test_example_chooses_a_block_size_per_gpu(tmp_path):
    printed = run(tmp_path, "choose_block_size.py", "rtx3090", "h200")
    assert printed.count("limited by DRAM") == 2


@pytest.mark.every(4)
@needs("xgboost", "scipy")
def test_replayed_measurements_train_and_evaluate_a_model(tmp_path):
    make_measured_database(tmp_path / "recorded.duckdb")
    printed = run(tmp_path, "measure_and_learn.py", "--replay", tmp_path / "recorded.duckdb", "--budget", "20configs")
    assert "120 rows are new" in printed
    assert "held-out groups" in printed


NVBENCH = {
    "benchmarks": [
        {
            "states": [
                {"axis_values": [{"name": "BlockSize", "value": "64"}], "summaries": None},
                {
                    "axis_values": [{"name": "BlockSize", "value": "256"}],
                    "summaries": [{"tag": "nv/cold/time/gpu/mean", "data": [{"value": "0.002"}]}],
                },
            ]
        }
    ]
}
HELION = """generation,status,perf_ms,config
0,started,,"Config(block_sizes=[64, 32], num_warps=4)"
0,ok,0.0874,"Config(block_sizes=[64, 32], num_warps=4, pid_type='flat')"
"""
INDUCTOR = """AUTOTUNE mm(128x4096, 4096x12288)
  mm 0.0485 ms 100.0%
  triton_mm_18 0.0494 ms 98.2% ACC_TYPE='tl.float32', BLOCK_K=64, num_warps=8
"""
EXPERTS = """Batch size: 1, config: {'BLOCK_SIZE_M': 16, 'num_warps': 4}
Kernel time: 101.43 us
"""


@pytest.mark.parametrize(("name", "content", "table"), [
    ("results.json", json.dumps(NVBENCH), "BlockSize,time_s\n256,0.002\n"),
    ("run.csv", HELION, "block_sizes_0,block_sizes_1,num_warps,time_ms\n64,32,4,0.0874\n"),
    ("moe.txt", EXPERTS, "BLOCK_SIZE_M,num_warps,tokens,time_us\n16,4,1,101.43\n"),
    ("train.log", INDUCTOR, "BLOCK_K,num_warps,time_ms\n64,8,0.0494\n"),
])  # fmt: skip
def test_results_of_other_tools_become_a_table(name, content, table, tmp_path):
    (tmp_path / name).write_text(content)
    assert run(tmp_path, "results_as_table.py", tmp_path / name) == table
