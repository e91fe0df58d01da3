"""Test the experiments of `tools/evidence` on made-up cases, and as commands without recordings."""

import subprocess
import sys

import numpy as np
import pytest
from evidence.cases import Cases, held_out, joined, read_cases, report
from evidence.experiments import intervals, library
from evidence.metrics import agreement, coverage, recommendations

from kernrec.errors import UsageError
from kernrec.kernel import load_kernel
from tests.helpers.paths import RECORDINGS, TOOLS

NEED_DATA = ("counters", "derived", "fit-power", "library", "power", "prior", "refine", "search", "triton")
NAMES = {*NEED_DATA, "expert-files", "intervals", "vendor-models"}


def evidence(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(TOOLS / "evidence"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=TOOLS.parent)


def table_rows(text: str, start: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith(start)]


def test_every_experiment_is_listed_on_one_line():
    lines = evidence().stdout.splitlines()
    assert {line.split()[0] for line in lines} == NAMES
    assert all(line.endswith(".") for line in lines)


@pytest.mark.parametrize("words", [("nothing",), ("power", "--nothing"), ("prior", "--sets", "gem")])
def test_unknown_experiment_option_or_set_is_refused(words):
    done = evidence(*words)
    assert done.returncode == 2
    assert words[0] != "prior" or "'gem'; did you mean gemm?" in done.stderr


@pytest.mark.every(4)
@pytest.mark.parametrize("name", NEED_DATA)
def test_experiment_without_recordings_reports_what_it_skipped(name, tmp_path):
    done = evidence(name, "--data", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "skipped" in done.stdout + done.stderr


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs the recordings in ../shared/data")
def test_library_is_close_to_tuned_matmuls(capsys):
    library.run(RECORDINGS, only=["tuned Triton"])
    (row,) = table_rows(capsys.readouterr().out, "f16 matmul, tuned Triton")
    assert row[4:6] == ["rtx3090", "21"]
    assert 0.9 < float(row[9]) < 1.15


@pytest.mark.parametrize("spec", sorted((TOOLS / "evidence/recordings/kernels").glob("*.toml")), ids=lambda p: p.stem)
def test_every_recorded_kernel_has_a_valid_spec(spec, tmp_path):
    text = spec.read_text()
    entry = next(line.split('"')[1] for line in text.splitlines() if line.startswith("entry"))
    (tmp_path / f"{spec.stem}.cu").write_text(f"__global__ void {entry}() {{}}")
    (tmp_path / "kernel.toml").write_text(text)
    kernel = load_kernel(tmp_path / "kernel.toml")
    assert kernel.sampled
    assert kernel.declares_problem


def made_up(kernel: str, gpu: str, errors: np.ndarray, **more: object) -> Cases:
    """Return cases with a predicted time of 1 s and a recorded time of exp(error) seconds."""
    columns = {name: np.full(len(errors), value) for name, value in more.items()}
    columns |= {"regime": np.full(len(errors), "core"), "free_s": np.ones(len(errors))}
    return Cases.single(kernel, gpu, "p", np.exp(errors), np.ones(len(errors)), columns)


def test_metrics_score_ranking_and_level():
    recorded = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    twice = Cases.single("k", "g", "p", recorded, 2.0 * recorded, {"low_s": recorded, "high_s": 2.0 * recorded})
    assert agreement(twice) == {"rows": 5, "rank": pytest.approx(1.0), "error": "100.0%", "no level": "0.0%",
                                "ratio": pytest.approx(2.0)}  # fmt: skip
    assert recommendations(twice)["first"] == "1.000"
    assert coverage(twice) == {"inside": "100.0%", "width": pytest.approx(2.0)}
    reverse = Cases.single("k", "g", "p", recorded, recorded[::-1])
    assert (recommendations(reverse)["first"], recommendations(reverse)["of 5"]) == ("0.200", "1.000")


def test_cases_can_be_split_written_and_read(tmp_path, capsys):
    cases = joined([made_up("k", "a", np.zeros(3)), made_up("l", "b", np.full(2, np.log(2.0)))])
    assert [(name, mask.sum()) for name, mask in held_out(cases, "gpu")] == [("a", 3), ("b", 2)]
    cases.write(tmp_path / "cases.json")
    again = read_cases([tmp_path / "cases.json"])
    assert again.error == pytest.approx(cases.error)
    report("title", again, ("kernel", "gpu"), agreement)
    assert [row[:3] for row in table_rows(capsys.readouterr().out, "l ")] == [["l", "b", "2"]]
    with pytest.raises(UsageError, match="there is no file"):
        read_cases([tmp_path / "none.json"])


@pytest.mark.every(4)
def test_intervals_cover_held_out_kernels(tmp_path, capsys):
    """Every kernel is off by a fifth on one of two GPUs, and one config of sixty by a tenth more on each."""
    errors = {gpu: level + 0.1 * (np.arange(60) == 0) for gpu, level in (("a", 0.2), ("b", 0.0))}
    parts = [made_up(f"k{number}", gpu, each) for number in range(40) for gpu, each in errors.items()]
    paths = [tmp_path / "0.json", tmp_path / "1.json"]
    for part, path in enumerate(paths):
        joined(parts[part::2]).write(path)
    intervals.run(paths, locked=True)
    text = capsys.readouterr().out
    assert table_rows(text, "core ")[0][:6] == ["core", "40", "4800", "core", "1.22", "1.00"]
    assert table_rows(text, "DRAM ")[0][1:6] == ["0", "0", "all", "1.22", "1.00"]
    time, ratio = table_rows(text, "a kernel ")
    assert time[2:6] == ["time", "40", "1.22", "99.2%"]
    assert ratio[2:6] == ["ratio", "40", "1.00", "96.7%"]


@pytest.mark.every(4)
def test_energy_intervals_cover_time_and_power_errors(tmp_path, capsys):
    """Time errors change energy by a fifth, power errors by a tenth; each error occurs on only one GPU."""
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
    assert table_rows(text, "core ")[0][6:8] == ["1.35", "1.00"]
    by_part = [row for row in table_rows(text, "a kernel, by its") if row[5] == "energy"]
    assert [row[6:9] for row in by_part] == [["40", "1.35", "100.0%"]] * 2
    assert text.splitlines()[-1].split() == ["6", "1.42", "0%", "100%"]
