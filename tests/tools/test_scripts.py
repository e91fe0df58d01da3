"""Test the scripts in `tools`: build and training scripts, benchmarks, exclusions and compiler variation."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from build_database import carry, same_code
from evidence.recordings.files import EXCLUSIONS, excluded, parquet_dicts, power_of
from profile_files import within_compiler_variation

from kernrec.kernel import find_kernel
from kernrec.store import Database, ProfileRow
from tests.helpers.command import environment
from tests.helpers.paths import RECORDINGS, ROOT, TOOLS
from tests.helpers.recording import make_recording


def tool(name: str, *words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, f"tools/{name}.py", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize(("plan", "least"), [("broad", 40), ("truth", 8)])
def test_campaign_lists_each_problem_once(plan, least):
    keys = tool("campaign", plan, "--list").stdout.splitlines()
    assert len(keys) == len(set(keys)) >= least
    assert {key.partition("[")[0] for key in keys} >= {"matmul", "matvec", "conv2d"}


@pytest.mark.every(4)
def test_second_part_of_a_campaign_keeps_the_rows_of_the_first(tmp_path):
    recording = make_recording(tmp_path / "recording.duckdb", configs=20)
    logs, counts = [], []
    for machine in ("first", "second"):
        place = tmp_path / machine / "campaign.duckdb"  # each machine has its own database
        words = ("broad", "--out", tmp_path / "out", "--database", place, "--replay", recording, "--minutes", "2")
        done = tool("campaign", *words)
        assert done.returncode == 0, done.stderr
        logs.append(done.stdout)
        with Database.open(tmp_path / "out" / place.name) as stored:
            counts.append(stored.counts()["measurement"])
    assert counts[0] == counts[1] > 15
    assert f"{counts[0]} rows stored" in logs[0]
    assert f" 0 rows, {counts[0]} before" in logs[1]
    assert (tmp_path / "out" / "doctor.json").exists()


def test_profiles_of_unchanged_kernels_stay():
    done = tool("build_database", "--carry", "HEAD", "transpose_tiled")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_profiles_are_kept_only_if_the_code_is_the_same():
    kernel = find_kernel("reduce_rows")
    assert same_code(replace(kernel, source=f"// x\n#if 0\nint x;\n#endif\n{kernel.source}"), kernel)
    assert carry(replace(kernel, source=f"{kernel.source} int x;"), kernel) == 1


SHIPPED = ROOT / "db/prebuilt/recorded"
ABSENT = {
    "attention": (
        "gpu = 'l40s' AND kernel = 'flash_attention'",
        "gpu = 'b200' AND stack = 'SGLang' AND queries > 1",
        "power_w > 0 AND latency_s < 4.99e-4",
    ),
    "softmax": ("gpu LIKE 'p100%'",),
    "layernorm": ("gpu LIKE 'p100%'",),
    "matmul": ("gpu = 'h200-sxm' AND power_w > 0 AND m = 128", "gpu = 'b200' AND stack = 'vLLM' AND m = 96 AND n = 2560"
               " AND k = 10240 AND power_w > 0 AND latency_s < 1e-4"),
}  # fmt: skip


@pytest.mark.parametrize(("op", "condition"), [(op, each) for op, every in ABSENT.items() for each in every])
def test_excluded_rows_and_powers_do_not_ship(op, condition):
    assert parquet_dicts(SHIPPED / f"{op}.parquet", condition, "count(*) AS n") == [{"n": 0}]


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs the recordings in ../shared/data")
@pytest.mark.parametrize("each", EXCLUSIONS, ids=lambda each: f"{each.file}-{each.rows[:30]}")
def test_every_exclusion_matches_rows(each):
    path = RECORDINGS / "library" / f"{each.file}.parquet"
    kept_rows = parquet_dicts(path, f"NOT ({excluded(each.file)})", "count(*) AS n")[0]["n"]
    excluded_rows = parquet_dicts(path, each.rows, "count(*) AS n")[0]["n"]
    assert 0 < excluded_rows < kept_rows


def test_file_without_exclusions_stays_complete():
    assert excluded("serving_moe") == "false"
    assert power_of("serving_moe", "watts") == "CASE WHEN false THEN NULL ELSE watts END"


METRICS = ("barriers", "global.a.read_sectors", "issue", "issue.alu", "issue.fma32", "lanes")
COUNTS = np.array([[0, 1], [0, 256], [800, 2500], [300, 40], [0, 2048], [25600, 80000]], dtype=np.float64)
ROW = ProfileRow("k", "h", "c", 86, 0, "k", {}, 104, 0, 0, 0, "one", "nvrtc 13.5", METRICS, ("block", "trips"), COUNTS)


def changed(metric: str, term: int, by: float, **fields: int) -> ProfileRow:
    counts = COUNTS.copy()
    counts[METRICS.index(metric), term] += by
    return replace(ROW, counts=counts, **fields)  # type: ignore[arg-type]


def test_different_moves_before_the_loop_are_ignored():
    assert within_compiler_variation(ROW, changed("issue.alu", 0, 50, registers=112))


@pytest.mark.parametrize(
    ("metric", "by"), [("issue.fma32", 1), ("global.a.read_sectors", -1), ("barriers", 1), ("issue.alu", 500)]
)
def test_different_arithmetic_or_memory_access_is_a_difference(metric, by):
    assert not within_compiler_variation(ROW, changed(metric, 1, by))


def test_registers_and_loops_count_as_differences():
    assert not within_compiler_variation(ROW, replace(ROW, registers=200))
    assert not within_compiler_variation(ROW, replace(ROW, terms=("block", "tiles")))


LITTLE: dict[str, tuple[str, ...]] = {
    "analyses": ("--rounds", "1", "--only", "nbody"),
    "cold": ("--rounds", "1", "--rows", "300"),
    "interpreter": ("--trips", "50", "--rounds", "1"),
    "many": ("--shapes", "20", "--gpu", "t4", "--only", "softmax"),
    "query": ("--shapes", "1", "--rounds", "1"),
    "store": ("--rows", "1000"),
}


def bench(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(TOOLS / "bench.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment())


def test_benchmarks_are_listed():
    assert {line.split()[0] for line in bench().stdout.splitlines()} == {*LITTLE}


@pytest.mark.slow
@pytest.mark.every(6)
@pytest.mark.parametrize("name", LITTLE)
def test_benchmark_prints_its_figures(name):
    done = bench(name, *LITTLE[name])
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1), done.stderr  # status 1: a busy machine missed an aim
    assert len(done.stdout.splitlines()) >= 2
