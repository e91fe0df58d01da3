"""Test the scripts in `tools`, and the experiments of `tools/evidence` on made-up cases."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from build_database import carry, same_code, shipped_variants, within_compiler_variation
from equal_answers import PINNED, Change, json_differences
from evidence.cases import Cases, agreement, coverage, joined, read_cases, recommendations, report
from evidence.experiments import intervals, library
from evidence.recordings.files import EXCLUSIONS, excluded, power_of, recorded_dicts

from kernrec.errors import UsageError
from kernrec.kernel import find_kernel
from kernrec.op import all_ops
from kernrec.store import Database, ProfileRow
from tests.helpers.command import environment
from tests.helpers.kernel_code import written_kernel
from tests.helpers.paths import RECORDINGS, ROOT, TOOLS
from tests.helpers.recording import make_recording


def tool(name: str, *words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, f"tools/{name}{'' if name == 'evidence' else '.py'}", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment())


@pytest.mark.parametrize(("plan", "least"), [("broad", 40), ("truth", 8)])
def test_campaign_lists_each_problem_once(plan, least):
    keys = tool("campaign", plan, "--list").stdout.splitlines()
    assert len(keys) == len(set(keys)) >= least
    assert {key.partition("[")[0] for key in keys} >= {"matmul", "matvec", "conv2d"}


@pytest.mark.every(4)
def test_second_part_of_a_campaign_keeps_rows_of_the_first_part(tmp_path):
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


def test_carry_option_keeps_profiles_of_unchanged_kernels():
    done = tool("build_database", "--carry", "HEAD", "transpose_tiled")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.every(4)
def test_profiles_are_kept_only_if_the_code_is_the_same(monkeypatch):
    kernel = find_kernel("reduce_rows")
    some = shipped_variants(kernel)[::40]
    monkeypatch.setattr("build_database.shipped_variants", lambda _: some)
    assert same_code(replace(kernel, source=f"// x\n#if 0\nint x;\n#endif\n{kernel.source}"), kernel)
    assert carry(replace(kernel, source=f"{kernel.source} int x;"), kernel) == 1


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
def test_excluded_recordings_are_not_shipped(op, condition):
    assert recorded_dicts(ROOT / "db/prebuilt/recorded" / f"{op}.parquet", condition, "count(*) AS n") == [{"n": 0}]


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs the recordings in ../shared/data")
@pytest.mark.parametrize("each", EXCLUSIONS, ids=lambda each: f"{each.file}-{each.rows[:30]}")
def test_every_exclusion_matches_rows(each):
    path = RECORDINGS / "library" / f"{each.file}.parquet"
    kept_rows = recorded_dicts(path, f"NOT ({excluded(each.file)})", "count(*) AS n")[0]["n"]
    excluded_rows = recorded_dicts(path, each.rows, "count(*) AS n")[0]["n"]
    assert 0 < excluded_rows < kept_rows


def test_recording_file_with_no_excluded_rows_is_packaged_whole():
    assert excluded("serving_moe") == "false"
    assert power_of("serving_moe", "watts") == "CASE WHEN false THEN NULL ELSE watts END"


METRICS = ("barriers", "global.a.read_sectors", "issue", "issue.alu", "issue.fma32", "lanes")
COUNTS = np.array([[0, 1], [0, 256], [800, 2500], [300, 40], [0, 2048], [25600, 80000]], dtype=np.float64)
ROW = ProfileRow("k", "h", "c", 86, 0, "k", {}, 104, 0, 0, 0, "one", "nvrtc 13.5", METRICS, ("block", "trips"), COUNTS)


def changed(metric: str, term: int, by: float, **fields: int) -> ProfileRow:
    counts = COUNTS.copy()
    counts[METRICS.index(metric), term] += by
    return replace(ROW, counts=counts, **fields)  # type: ignore[arg-type]


def test_code_comparison_ignores_moves_before_the_loop():
    assert within_compiler_variation(ROW, changed("issue.alu", 0, 50, registers=112))


@pytest.mark.parametrize(
    ("metric", "by"), [("issue.fma32", 1), ("global.a.read_sectors", -1), ("barriers", 1), ("issue.alu", 500)]
)
def test_code_comparison_detects_changed_arithmetic_or_memory_access(metric, by):
    assert not within_compiler_variation(ROW, changed(metric, 1, by))


def test_code_comparison_detects_changed_registers_and_loops():
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


def test_benchmarks_are_listed():
    assert {line.split()[0] for line in tool("bench").stdout.splitlines()} == {*LITTLE}


@pytest.mark.slow
@pytest.mark.every(6)
@pytest.mark.parametrize("name", LITTLE)
def test_benchmark_prints_its_figures(name):
    done = tool("bench", name, *LITTLE[name])
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1), done.stderr  # status 1: a busy machine was too slow
    assert len(done.stdout.splitlines()) >= 2


@pytest.mark.every(3)
@pytest.mark.slow
def test_equal_answers_tool_detects_changed_answers(tmp_path):
    some = "--queries", 40, "--seed", 3
    itself = tool("equal_answers", "--before", ROOT, *some)
    assert itself.returncode == 0, itself.stdout + itself.stderr
    assert re.match(r"40 queries \([1-9]\d* of several shapes, [1-9]\d* about a kernel\): 40 equal, 0 ", itself.stdout)
    shutil.copytree(ROOT / "kernrec", tmp_path / "kernrec")
    for name in ("db", "datasets"):
        (tmp_path / name).symlink_to(ROOT / name)
    for catalog in (tmp_path / "kernrec" / "gpu" / "catalog").glob("*.toml"):
        catalog.write_text(
            re.sub(r"\bboost = (\d+)", lambda clock: f"boost = {int(clock[1]) + 1}", catalog.read_text())
        )
    other = tool("equal_answers", "--before", tmp_path, *some)
    assert other.returncode == 1, other.stderr
    assert re.search(r"latency_s is [\de.-]+, now [\de.-]+\n", other.stdout)
    equal, different = map(int, re.findall(r"(\d+) (?:equal|different)", other.stdout))
    assert equal + different == 40
    assert different > 20


def test_folder_that_is_not_a_checkout_is_refused_in_one_line(tmp_path):
    done = tool("equal_answers", "--before", tmp_path)
    assert (done.returncode, done.stderr) == (2, f"equal_answers: {tmp_path} is not a checkout of kernrec\n")


def test_release_missing_from_history_is_skipped():
    done = tool("equal_answers", "--release", "0.0.9")
    assert (done.returncode, done.stdout) == (0, "skipped: no commit 'Release 0.0.9' in git's history\n")


def test_change_entry_allows_only_differences_of_its_queries_and_fields():
    change = Change("one-warp blocks", r"latency_s", ops=("reduce",))
    query = {"op": "reduce", "gpu": "rtx3090", "dtype": "f32"}
    assert change.covers(query, ".choices[0].latency_s is 1.0, now 2.0")
    assert not change.covers(query, ".choices[0].energy_j is 1.0, now 2.0")
    assert not change.covers(query | {"op": "conv2d"}, ".choices[0].latency_s is 1.0, now 2.0")
    of_kernel = {"gpu": "l4", "dtype": "f32"}
    assert change.covers(of_kernel | {"kernel": "reduce_rows"}, ".latency_s is 1.0, now 2.0")
    assert not change.covers(of_kernel | {"kernel": "softmax_rows"}, ".latency_s is 1.0, now 2.0")


@pytest.mark.parametrize(("before", "now", "differences"), [
    ({"a": [1.0, "x"]}, {"a": [1.0 + 1e-13, "x"]}, []),
    ({"a": [1.0, "x"]}, {"a": [1.0 + 1e-11, "y"]}, [".a[0] is 1.0, now 1.00000000001", ".a[1] is 'x', now 'y'"]),
    ({"slowdown": 1e-9}, {"slowdown": 1e-9 + 1e-16}, []),
    ({"slowdown": 1e-9}, {"slowdown": 2e-9}, [".slowdown is 1e-09, now 2e-09"]),
    ({"a": 1e-9}, {"a": 1e-9 + 1e-16}, [".a is 1e-09, now 1.0000001e-09"]),
    ({"a": float("nan")}, {"a": float("nan")}, []), ({"a": float("inf")}, {"a": 1e308}, [".a is inf, now 1e+308"]),
    ({"a": 1}, {"a": True}, [".a is 1, now True"]), ({"a": None}, {"a": 0}, [".a is None, now 0"]),
    ({"a": 1, "b": 2}, {"a": 1, "c": 2}, [".b is gone", ".c is new"]),
    ([1, 2], [1, 3, 4], [" has 2 entries, now 3", "[1] is 2, now 3"]),
])  # fmt: skip
def test_json_differences_are_listed_by_path(before, now, differences):
    assert list(json_differences(before, now)) == differences


@pytest.mark.parametrize(("difference", "covered"), [
    (".choices[0].latency_s is 1e-05, now 1.4e-05", True), (".choices[0].latency_s is 1e-05, now 6e-06", False),
    (".choices[0].slowdown is 0.0, now 0.3", True), (".choices[0].latency_s is 1e-05, now None", False),
])  # fmt: skip
def test_change_entry_allows_only_differences_up_to_its_largest_factor(difference, covered):
    change = Change("baselines scale a lead", r"^\.choices", most=1.5)
    assert change.covers({"op": "matvec", "gpu": "l4", "dtype": "f16"}, difference) is covered


def test_pinned_answers_include_every_op():
    queries = [query for some in json.loads(gzip.decompress(PINNED.read_bytes()))["queries"] for query in some]
    assert {query.get("op") or find_kernel(query["kernel"]).op for query in queries} == {op.name for op in all_ops()}
    assert any("shapes" in query for query in queries)


NEED_DATA = ("analytical", "baselines", "counters", "fit-power", "library", "power", "refine", "search", "triton")


def table_rows(text: str, start: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith(start)]


def test_every_experiment_is_listed_on_one_line():
    lines = tool("evidence").stdout.splitlines()
    assert {line.split()[0] for line in lines} == {*NEED_DATA, "expert-files", "intervals", "vendor-models"}
    assert all(line.endswith(".") for line in lines)


@pytest.mark.parametrize("words", [("nothing",), ("power", "--nothing"), ("analytical", "--sets", "gem")])
def test_unknown_experiment_or_argument_is_refused(words):
    done = tool("evidence", *words)
    assert done.returncode == 2
    assert words[0] != "analytical" or "'gem'; did you mean gemm?" in done.stderr


@pytest.mark.every(4)
@pytest.mark.parametrize("name", NEED_DATA)
def test_experiment_without_recordings_reports_what_it_skipped(name, tmp_path):
    done = tool("evidence", name, "--data", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "skipped" in done.stdout + done.stderr


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs the recordings in ../shared/data")
def test_experiment_compares_library_kernels_with_tuned_matmuls(capsys):
    library.run(RECORDINGS, only=["tuned Triton"])
    (row,) = table_rows(capsys.readouterr().out, "f16 matmul, tuned Triton")
    assert row[4:6] == ["rtx3090", "21"]
    assert 0.9 < float(row[9]) < 1.15


@pytest.mark.parametrize("spec", sorted((TOOLS / "evidence/recordings/kernels").glob("*.toml")), ids=lambda p: p.stem)
def test_every_recorded_kernel_has_a_valid_spec(spec, tmp_path):
    text = spec.read_text()
    entry = next(line.split('"')[1] for line in text.splitlines() if line.startswith("entry"))
    kernel = written_kernel(tmp_path, f"__global__ void {entry}() {{}}", text)
    assert kernel.sampled
    assert kernel.declares_problem


def made_up(kernel: str, gpu: str, errors: np.ndarray, **more: object) -> Cases:
    """Return cases with a predicted time of 1 s and a recorded time of exp(error) seconds."""
    times = {"recorded": np.exp(errors), "predicted": 1.0, "free_s": 1.0}
    return Cases.of(kernel=kernel, gpu=gpu, problem="p", **times, **more)


def test_experiment_metrics_score_ranking_and_absolute_error():
    recorded = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    names = {"kernel": "k", "gpu": "g", "problem": "p"}
    twice = Cases.of(**names, recorded=recorded, predicted=2.0 * recorded, low_s=recorded, high_s=2.0 * recorded)
    assert agreement(twice) == {"rows": 5, "rank": pytest.approx(1.0), "error": "100.0%", "no level": "0.0%",
                                "ratio": pytest.approx(2.0)}  # fmt: skip
    assert recommendations(twice)["first"] == "1.000"
    assert coverage(twice) == {"inside": "100.0%", "width": pytest.approx(2.0)}
    reverse = Cases.of(**names, recorded=recorded, predicted=recorded[::-1])
    assert (recommendations(reverse)["first"], recommendations(reverse)["of 5"]) == ("0.200", "1.000")


def test_experiment_cases_can_be_split_written_and_read(tmp_path, capsys):
    cases = joined([made_up("k", "a", np.zeros(3)), made_up("l", "b", np.full(2, np.log(2.0)))])
    assert [(names["gpu"], len(part)) for names, part in cases.parts("gpu")] == [("a", 3), ("b", 2)]
    cases.write(tmp_path / "cases.json")
    again = read_cases([tmp_path / "cases.json"])
    assert again.error == pytest.approx(cases.error)
    report("title", again, ("kernel", "gpu"), agreement)
    assert [row[:3] for row in table_rows(capsys.readouterr().out, "l ")] == [["l", "b", "2"]]
    with pytest.raises(UsageError, match="there is no file"):
        read_cases([tmp_path / "none.json"])


@pytest.mark.every(4)
def test_intervals_cover_held_out_kernels(tmp_path, capsys):
    """Every kernel is off by a fifth on one of two GPUs. On both GPUs, one config of sixty is off by a tenth more."""
    errors = {gpu: level + 0.1 * (np.arange(60) == 0) for gpu, level in (("a", 0.2), ("b", 0.0))}
    parts = [made_up(f"k{number}", gpu, each) for number in range(40) for gpu, each in errors.items()]
    paths = [tmp_path / "0.json", tmp_path / "1.json"]
    for part, path in enumerate(paths):
        joined(parts[part::2]).write(path)
    intervals.run(paths)
    text = capsys.readouterr().out
    assert table_rows(text, "time ")[0][:3] == ["time", "4800", "1.22"]
    assert table_rows(text, "ratio ")[0][:3] == ["ratio", "4800", "1.00"]
    time, ratio = table_rows(text, "a kernel ")
    assert time[2:6] == ["time", "40", "1.22", "99.2%"]
    assert ratio[2:6] == ["ratio", "40", "1.00", "96.7%"]


@pytest.mark.every(4)
def test_energy_intervals_cover_time_and_power_errors(tmp_path, capsys):
    """Time errors change energy by a fifth, power errors by a tenth. Each error occurs on only one GPU."""
    times, powers = [], []
    for number in range(40):
        for gpu, level in (("a", 0.2), ("b", 0.0)):
            more = {"energy at predicted": level, "energy at free": level, "predicted_j": 1.0, "free_j": 1.0}
            more["recorded_j"] = np.exp(0.35) if number == 0 else np.nan
            times.append(made_up(f"k{number}", gpu, np.zeros(3), **more))
            powers.append(made_up(f"p{number}", gpu, np.full(3, level / 2)))
    joined(times).write(tmp_path / "prior.json")
    joined(powers).write(tmp_path / "power.json")
    intervals.run([tmp_path / "prior.json"], tmp_path / "power.json")
    text = capsys.readouterr().out
    assert table_rows(text, "energy ")[0][2] == "1.35"
    assert table_rows(text, "energy_ratio ")[0][2] == "1.00"
    by_part = [row for row in table_rows(text, "a kernel, by its") if row[5] == "energy"]
    assert [row[6:9] for row in by_part] == [["40", "1.35", "100.0%"]] * 2
    assert text.splitlines()[-1].split() == ["6", "1.42", "0%", "100%"]
