"""Each command of `tools/evidence` as people run it: on recordings where they are, and without them in one line."""

import json
import math
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from kernrec.kernel import find_kernel, load_kernel
from tests.helpers.paths import RECORDINGS, TOOLS

NEED_DATA = (
    "clock", "contributed", "counters", "energy", "fit-power", "kernel-tuner", "learn", "new-cards", "partial", "power",
    "products", "refine", "search", "spaces", "stream-k", "trips", "triton", "warm-search",
)  # fmt: skip
QUICK: dict[str, tuple[str, ...]] = {
    "anchors": (), "clock": (), "new-cards": (), "products": ("--shapes", "20"), "stream-k": ("--shapes", "3"),
    "attention": ("--shapes", "20"),
}  # fmt: skip
"""Commands that take seconds, on few problems."""
needs_recordings = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs the recordings in ../shared/data")


def evidence(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(TOOLS / "evidence"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=TOOLS.parent)


def test_the_commands_are_listed_each_with_a_line() -> None:
    lines = evidence().stdout.splitlines()
    names = {line.split()[0] for line in lines}
    assert names >= {*NEED_DATA, *QUICK, "prior", "occupancy", "shortlist", "conversions"}
    assert all(line.endswith(".") for line in lines)


def test_an_unknown_command_and_an_unknown_option_are_refused() -> None:
    assert evidence("nothing").returncode == 2
    assert evidence("clock", "--nothing").returncode == 2


@pytest.mark.every(6)
@pytest.mark.parametrize("name", NEED_DATA)
def test_without_recordings_a_command_says_so_in_one_line_and_succeeds(name: str, tmp_path: Path) -> None:
    done = evidence(name, "--data", tmp_path)
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith("skipped") for line in done.stdout.splitlines()) >= 1


def test_figures_of_the_models_of_stacks_are_those_of_their_cards_and_made_anew_from_recordings_alone(
    tmp_path: Path,
) -> None:
    done = evidence("vendor-models", "--op", "softmax", "--data", tmp_path)
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("problems ", "card "))]
    card = json.loads((TOOLS.parent / "db/prebuilt/models/vendor/softmax.json").read_text())
    heads = card["sets"][0]["heads"]["latency"]
    errors = {words[3]: words[5] for words in rows if words[0] == "problems"}
    assert errors == {
        gpu: f"{head['median error, problems left out']:.1%}" for gpu, head in heads.items() if gpu != "*"
    }
    assert "models that ship" in done.stdout
    again = evidence("vendor-models", "--again", "--data", tmp_path)
    assert again.stdout.startswith("skipped")


def test_without_recordings_the_prior_names_every_set_and_its_constants_are_on_the_grid(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = ["--sets", "convolution,gemm,textbook", "--leave-out", "--json", figures]
    done = evidence("prior", "--data", tmp_path, *options)
    assert done.returncode == 0, done.stderr
    for name in ("convolution on", "gemm on", "textbook"):
        assert f"skipped {name}" in done.stderr
    assert "constants without a card" in done.stdout
    assert '"spaces": []' in figures.read_text()


def test_an_unknown_set_is_refused_with_the_nearest_one() -> None:
    done = evidence("prior", "--sets", "gem")
    assert done.returncode == 2
    assert "'gem'; did you mean gemm?" in done.stderr


@needs_recordings
@pytest.mark.slow
@pytest.mark.every(3)
@pytest.mark.parametrize("name", QUICK)
def test_a_command_prints_its_figures(name: str) -> None:
    done = evidence(name, *QUICK[name])
    assert done.stderr == ""
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) >= 3


@needs_recordings
@pytest.mark.slow
@pytest.mark.deep
def test_a_search_that_begins_with_predictions_finds_one_of_the_best_configs() -> None:
    """After 20 configs of the A4000's space, and after a twentieth of that of the A100, whose clock changed."""
    lines = evidence("kernel-tuner", "--predictions", "--repeats", "1").stdout.splitlines()
    rows = [line.rsplit(maxsplit=5)[1:5] for line in lines if line.startswith(("prior only", "trained on"))]
    a100, a4000 = (
        [[float(text) for text in row] for row in rows[:2]],
        [[float(text) for text in row] for row in rows[2:]],
    )
    assert len(a4000) == 2
    assert all(row[-1] <= 1.13 for row in a100)
    assert all(row[0] <= 1.02 for row in a4000)


@pytest.mark.parametrize("spec", sorted((TOOLS / "evidence" / "recorded_kernels").glob("*.toml")), ids=lambda p: p.stem)
def test_every_recorded_kernel_has_a_spec_that_reads(spec: Path, tmp_path: Path) -> None:
    text = spec.read_text()
    entry = next(line.split('"')[1] for line in text.splitlines() if line.startswith("entry"))
    (tmp_path / f"{spec.stem}.cu").write_text(f"__global__ void {entry}() {{}}")
    (tmp_path / "kernel.toml").write_text(text)
    kernel = load_kernel(tmp_path / "kernel.toml")
    assert kernel.sampled
    assert kernel.declares_problem


@pytest.mark.slow
def test_made_up_recordings_of_triton_are_trained_on_and_scored(tmp_path: Path) -> None:
    """Strides tell the layout; failures, the vendor's rows and matrices with gaps are left out."""
    columns = ("m", "n", "k", "dtype", "tf32", "a_stride_0", "a_stride_1", "b_stride_0", "b_stride_1", "implementation",
               "block_m", "block_n", "block_k", "num_stages", "num_warps", "latency_s", "failures")  # fmt: skip
    listed = find_kernel("matmul_triton").listed
    assert listed is not None
    tunables = [listed.columns.index(name) for name in columns[10:15]]
    configs = list(dict.fromkeys(tuple(row[place] for place in tunables) for row in listed.rows))[:20]
    rows = []
    for size in (512, 1024, 1536, 2048, 3072, 4096):
        for kind, strides in (("'float16'", f"{size}, 1, {size}, 1"), ("'bfloat16'", f"{size}, 1, 1, {size}")):
            shape = f"{size}, {size}, {size}, {kind}, false, {strides}"
            for place, config in enumerate(configs):
                rows.append(f"({shape}, 'triton', {', '.join(map(str, config))}, {1e-5 * size * (1 + place)}, 0)")
            rows.append(f"({shape}, 'triton', 128, 128, 64, 5, 8, NULL, 3)")
            rows.append(f"({shape}, 'extern_mm', NULL, NULL, NULL, NULL, NULL, 9e-6, 0)")
    rows.append("(512, 512, 512, 'float16', false, 528, 1, 512, 1, 'triton', 64, 64, 32, 2, 4, 4e-5, 0)")
    (tmp_path / "triton").mkdir()
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t AS SELECT * FROM (VALUES {', '.join(rows)}) t({', '.join(columns)})")
        for card in ("a100", "h100"):
            connection.execute(f"COPY t TO '{tmp_path / 'triton' / f'inductor_mm_{card}.parquet'}' (FORMAT parquet)")
    done = evidence("triton", "--data", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "inductor_mm_a100.parquet: 12 of 12 problems" in done.stdout
    assert {"learned", "from h100", "5 measured", "prior", "random"} <= {
        line[:26].strip() for line in done.stdout.splitlines()
    }


def test_intervals_cover_the_kernels_that_they_were_not_made_of(tmp_path: Path) -> None:
    """Every kernel errs by a fifth on one card and not on the other, one config of sixty by a tenth more."""
    errors = [
        {"kernel": f"k{kernel}", "card": card, "problem": "", "regime": "core", "free": level + 0.1 * (config == 0)}
        for kernel in range(40)
        for card, level in (("a", 0.2), ("b", 0.0))
        for config in range(60)
    ]
    for part in range(2):
        (tmp_path / f"{part}.json").write_text(json.dumps({"errors": errors[part::2]}))
    files = [text for part in range(2) for text in ("--errors", tmp_path / f"{part}.json")]
    lines = evidence("intervals", *files).stdout.splitlines()
    (core,) = [line.split() for line in lines if line.startswith("core ")]
    assert core[:6] == ["core", "40", "4800", "core", "1.22", "1.00"]
    (bound_alike,) = [line.split() for line in lines if line.startswith("DRAM ")]
    assert bound_alike[1:7] == ["0", "0", "all", "regimes", "1.22", "1.00"]
    (left_out,) = [line.split() for line in lines if line.startswith("a kernel")]
    assert left_out[2:7] == ["40", "1.22", "1.00", "99.2%", "96.7%"]
    refused = evidence("intervals", "--errors", tmp_path / "none.json")
    assert refused.returncode == 2
    assert "there is no" in refused.stderr


def test_intervals_of_energies_hold_what_a_wrong_time_and_a_wrong_power_make_of_them(tmp_path: Path) -> None:
    """Time makes energy wrong by a fifth, power by a tenth, each on one card and not on the other."""
    times = [
        {"kernel": f"k{kernel}", "card": card, "problem": "", "regime": "core", "energy by free": level}
        | ({"joules, free": 0.35} if kernel == 0 else {})
        for kernel in range(40)
        for card, level in (("a", 0.2), ("b", 0.0))
        for _ in range(3)
    ]
    powers = [
        {"kernel": f"p{kernel}", "card": card, "problem": "", "error": level}
        for kernel in range(40)
        for card, level in (("a", 0.1), ("b", 0.0))
        for _ in range(3)
    ]
    errors, power = tmp_path / "prior.json", tmp_path / "power.json"
    errors.write_text(json.dumps({"errors": times}))
    power.write_text(json.dumps({"power": powers}))
    lines = evidence("energy-intervals", "--errors", errors, "--power", power).stdout.splitlines()
    (core,) = [line.split() for line in lines if line.startswith("core ")]
    assert core[:6] == ["core", "40", "240", "core", "1.35", "1.00"]
    left_out = [line.split() for line in lines if line.startswith("a kernel, by its")]
    assert [row[5:8] for row in left_out] == [["40", "1.35", "1.00"]] * 2
    assert [row[8] for row in left_out] == ["100.0%"] * 2
    (recorded,) = [line.split() for line in lines if line.startswith("k0 ")]
    assert recorded == ["k0", "6", "1.42", "0.00", "1.00"]
    refused = evidence("energy-intervals", "--errors", errors, "--power", tmp_path / "none.json")
    assert refused.returncode == 2
    assert "there is no" in refused.stderr


def test_distances_tell_where_errors_grow_and_where_coverage_is_uneven(tmp_path: Path) -> None:
    """Twenty kernels that are alike err by a twentieth, one of four that are not by a third."""
    errors = [
        {"kernel": f"k{kernel}", "card": card, "problem": "", "regime": "core", "free": error, "predicted_s": 1e-3}
        | {"shares": [shares, 0.1 * config]}
        for kernel in range(24)
        for card in ("rtx3060", "a100-sxm4-40gb")
        for config in range(3)
        for shares, error in [(0.01 * kernel, 0.05) if kernel < 20 else (10.0 * kernel, 0.3)]
    ]
    path = tmp_path / "prior.json"
    path.write_text(json.dumps({"errors": errors}))
    lines = {line.split()[0]: line.split() for line in evidence("distance", "--errors", path).stdout.splitlines()}
    assert float(lines["kernels"][1]) > 0.5
    assert lines["size"][1] == "0.00"
    path.write_text(json.dumps({"errors": [{**errors[0]} | {"free": 0.0}]}).replace('"shares"', '"other"'))
    assert "has no shares" in evidence("distance", "--errors", path).stderr


def test_the_figures_of_the_prior_are_one_table_that_says_what_is_seen(tmp_path: Path) -> None:
    """Times of a textbook kernel half of which are 2 x too short; power 10 % too low on cards left out."""
    times = [
        {"kernel": name, "card": card, "problem": "", "regime": "core", "error": error, "free": error}
        | {"energy by free": error}
        | ({"joules, error": 0.05} if name == "hotspot" else {})
        for name in ("matvec_shared", "hotspot")
        for card in ("rtx3060", "rtx3070ti")
        for error in (0.0, math.log(2.0))
    ]
    space = {"set": "gemm", "rank": 0.9, "error": "10.0%", "first": "0.950", "of 5": "1.000"}
    shape = {"set": "f16 product, cuBLAS", "card": "a", "shapes": 60, "ratio": 0.9, "prior alone": 0.8}
    shapes = [shape, shape | {"set": "f16 product, fastest recorded", "ratio": 0.97}]
    sweeps = [{"kernrec": "0.980"}, {"kernrec": "0.800"}]
    document = {"errors": times, "spaces": [space], "shapes": shapes, "sweeps": sweeps}
    recorded = {"error": "5.0%", "error left out": "10.0%", "doubted": False}
    figures = {
        "power": [{"kernel": kernel, "card": "a", "problem": "", "error": 0.1} for kernel in "ppqq"],
        "least energy off W": 50.0,
        "recordings": {"one": recorded, "two": recorded | {"error left out": "90.0%", "doubted": True}},
        "held": {"h": {"fitted": 1.0, "left out": 0.9}}, "sustained": {"s": {"fitted": 1.2}},
        "sweeps": {"s": [[0, 0.05, 0.0], [2, 0.15, 0.0]]},
    }  # fmt: skip
    errors, power = tmp_path / "prior.json", tmp_path / "power.json"
    errors.write_text(json.dumps(document))
    power.write_text(json.dumps(figures))
    lines = evidence("prior-figures", "--errors", errors, "--power", power).stdout.splitlines()
    rows = dict(line.strip("| ").split(" | ", 1) for line in lines)
    assert rows["textbook sweeps within 5 % of the best"].startswith("1 of 2 | 28 of 35 | seen")
    assert rows["textbook times: median error; beyond 1.5x"].startswith("25.0 %; 50 % of 4")
    assert rows["spaces: first choice"].startswith("0.95 (0.95 to 0.95)")
    assert rows["power under load, cards left out"].startswith(
        "10.0 % (10.0 % to 10.0 %) | 10 % | 1 recordings, left out"
    )
    assert rows["clock of least energy within one step"].startswith("50 %")
    assert rows["energy with the predicted time: hotspot"].startswith("4.9 %")
    assert rows["GEMM, own kernels over libraries: prior alone"].startswith("0.80 to 0.80")
    assert rows["the same of random numbers, in runs of a second"].startswith("1.20 to 1.20 | 0.9 to 1.1 | 1 large")
    assert rows["GEMM as answered: largest lead over a library"].startswith("10 %")
    assert rows["GEMM as answered: largest lead over the fastest recorded"].startswith("3 %")
    assert sum("kept back, not run" in row for row in rows.values()) == 5
