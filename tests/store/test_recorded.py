"""Test that shipped recordings are found exactly, with author and date, and without DuckDB once cached."""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import numpy as np
import pytest
from evidence.recordings.files import recorded_dicts

from kernrec.errors import KernrecError
from kernrec.gpu import find_gpu
from kernrec.op import Problem, find_op
from kernrec.store import recorded
from kernrec.store.recorded import contents, recorded_baselines, rows_beside
from tests.helpers.paths import RECORDINGS, ROOT

FOLDER = ROOT / "db/prebuilt/recorded"
OPS = tuple(contents())
LARGEST = 8e6
LICENCES = {"github.com/ai-dynamo/aiconfigurator": "Apache-2.0", "github.com/sitar-lab/NeuSight": "MIT"}

every_op = pytest.mark.parametrize("op", OPS)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "kernrec"
    monkeypatch.setenv("KERNREC_CACHE", str(folder))
    recorded._table.cache_clear()
    return folder


def problem_of(op: str, row: dict[str, object]) -> Problem:
    definition = find_op(op)
    dims = {dim.name: row[dim.name] for dim in definition.dims if dim.name in row}
    return definition.problem(str(row["dtype"]), str(row["layout"]), **dims)


def some_rows(op: str, count: int) -> list[dict[str, object]]:
    return recorded_dicts(FOLDER / f"{op}.parquet", f"true USING SAMPLE reservoir({count} ROWS) REPEATABLE (7)")


def test_shipped_file_is_at_most_8_mb():
    assert sum(path.stat().st_size for path in FOLDER.glob("*.parquet")) <= LARGEST
    assert {path.stem for path in FOLDER.glob("*.parquet")} == set(OPS)


@every_op
def test_contents_json_matches_each_recording_file(op):
    about, path = contents()[op], FOLDER / f"{op}.parquet"
    assert sha256(path.read_bytes()).hexdigest() == about["sha256"]
    rows = recorded_dicts(path, columns="count(*) AS rows, count(power_w) AS powers")[0]
    assert (rows["rows"], rows["powers"]) == (about["rows"], about["with_power"])
    assert all(find_gpu(gpu).name == gpu for gpu in about["gpus"])


@every_op
def test_every_row_names_a_source_with_a_permissive_licence(op):
    named = recorded_dicts(FOLDER / f"{op}.parquet", "true GROUP BY ALL", "source, licence, recorded")
    assert named
    for row in named:
        assert LICENCES[row["source"]] == row["licence"]
        assert row["recorded"].startswith("published")
        assert row["source"].removeprefix("github.com/") in (ROOT / "NOTICE").read_text()


@every_op
def test_recorded_problem_is_answered_with_its_row(op):
    for row in some_rows(op, 5):
        baselines = recorded_baselines(problem_of(op, row), find_gpu(str(row["gpu"])))
        (baseline,) = [
            baseline for baseline in baselines if (baseline.backend, baseline.variant) == (row["stack"], row["variant"])
        ]
        assert baseline.latency_s == pytest.approx(float(str(row["latency_s"])), rel=1e-6)
        assert (baseline.power_w is None) == (row["power_w"] is None) == (baseline.power_interval_w is None)
        low, high = baseline.latency_interval_s
        assert 1.029 * low < baseline.latency_s < high / 1.029
        if baseline.power_w is not None and baseline.power_interval_w is not None:
            assert (
                baseline.power_interval_w[0]
                < baseline.power_w
                <= baseline.power_interval_w[1]
                <= find_gpu(row["gpu"]).tdp_w
            )
        for name in ("version", "kernel", "source", "licence", "recorded"):
            assert getattr(baseline, name) == row[name]
        assert list(baselines) == sorted(baselines, key=lambda baseline: baseline.latency_s)


@pytest.mark.every(3)
@every_op
def test_no_two_problems_share_a_key(op):
    dims = [dim.name for dim in find_op(op).dims if dim.name in some_rows(op, 1)[0]]
    identity = ", ".join(f'"{name}"' for name in ("gpu", "dtype", "layout", *dims))
    problems = recorded_dicts(FOLDER / f"{op}.parquet", columns=f"count(DISTINCT ({identity})) AS problems")
    kinds = recorded_dicts(FOLDER / f"{op}.parquet", columns="DISTINCT gpu, dtype")
    tables = [recorded._table(op, str(kind["gpu"]), str(kind["dtype"])) for kind in kinds]
    distinct = [np.unique(np.stack([table.keys, table.items]), axis=1).shape[1] for table in tables]
    assert sum(distinct) == problems[0]["problems"]


def test_recordings_near_a_problem_include_every_recorded_row_count():
    condition = "gpu = 'h100-sxm' AND dtype = 'f8e4m3' AND layout = 'nt' AND batch = 1 AND n = 768 AND k = 768"
    numbers = {row["m"] for row in recorded_dicts(FOLDER / "matmul.parquet", condition, "DISTINCT m")}
    problem = find_op("matmul").problem("f8e4m3", "nt", m=35 * 128, n=768, k=768)
    items, rows = rows_beside(problem, find_gpu("h100"))
    assert items == 35 * 128
    assert {number for _, number, _, _ in rows} == numbers
    assert 34 * 128 in numbers


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs the recordings in ../shared/data")
def test_recorded_pytorch_batched_matmuls_run_a_block_per_output_tile():
    path = RECORDINGS / "library" / "torch_bmm_f32.parquet"
    for row in recorded_dicts(path, "device = 'Tesla T4' USING SAMPLE reservoir(5 ROWS) REPEATABLE (7)"):
        across, down = map(int, re.findall(r"(\d+)x(\d+)", row["kernels"])[0])
        tiles = -(-row["k"] // across) * -(-row["m"] // down)
        assert row["grid_x"] * row["grid_y"] * row["grid_z"] == row["batch"] * tiles
        sizes = {"batch": row["batch"], "m": row["m"], "n": row["k"], "k": row["n"]}  # `row` sums over n
        (baseline,) = recorded_baselines(find_op("matmul").problem("f32", "nn", **sizes), find_gpu("t4"))
        assert baseline.latency_s == pytest.approx(row["latency_s"], rel=1e-3)


ASK = """
import sys
from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.store.recorded import recorded_baselines
problem = find_op("softmax").problem(rows=int(sys.argv[1]), columns=int(sys.argv[2]))
print(len(recorded_baselines(problem, find_gpu("t4"))))
print("duckdb" in sys.modules)
"""


def ask(row: dict[str, object]) -> list[str]:
    command = [sys.executable, "-c", ASK, str(row["rows"]), str(row["columns"])]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout.split()


def on_t4() -> dict[str, object]:
    return recorded_dicts(FOLDER / "softmax.parquet", "gpu = 't4' LIMIT 1")[0]


def test_two_processes_can_build_the_cache_at_once(own_cache):
    row = on_t4()
    with ThreadPoolExecutor(2) as pool:
        assert [answer[0] for answer in pool.map(ask, [row, row])] == ["1", "1"]
    assert [path.name for path in (own_cache / "recorded").iterdir() if not path.name.startswith(".")]


@pytest.mark.every(3)
def test_killed_build_leaves_no_partial_cache(own_cache):
    row = on_t4()
    slow = (
        "import os, time\nreal = os.replace\n"
        "def replace(old, new):\n"
        "    if 'softmax.' in str(new): print('now', flush=True); time.sleep(60)\n"
        "    real(old, new)\n"
        "os.replace = replace\n"
    )
    command = [sys.executable, "-c", slow + ASK, str(row["rows"]), str(row["columns"])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGKILL)
    assert not [path for path in (own_cache / "recorded").iterdir() if not path.name.startswith(".")]
    assert ask(row)[0] == "1"


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b"", lambda b: b"x" + b[1:], lambda b: b[:30]])
def test_damaged_cache_is_rebuilt(own_cache, damage):
    row = on_t4()
    problem, gpu = problem_of("softmax", row), find_gpu("t4")
    baselines = recorded_baselines(problem, gpu)
    (path,) = (own_cache / "recorded").glob(f"softmax.*.{gpu.name}.{problem.dtype}.arrays")
    whole = path.read_bytes()
    recorded._table.cache_clear()
    path.unlink()
    path.write_bytes(damage(whole))
    assert recorded_baselines(problem, gpu) == baselines
    assert path.read_bytes() == whole


def test_shipped_file_of_another_version_is_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "softmax.parquet").write_bytes(b"PAR1 of another version")
    (tmp_path / "contents.json").write_text(json.dumps({"softmax": contents()["softmax"]}))
    row = on_t4()
    monkeypatch.setattr(recorded, "_folder", lambda: tmp_path)
    with pytest.raises(KernrecError, match="reinstall kernrec") as error:
        recorded_baselines(problem_of("softmax", row), find_gpu("t4"))
    assert "\n" not in str(error.value)
