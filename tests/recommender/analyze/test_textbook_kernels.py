"""Test block sizes of textbook kernels against recorded times of two GPUs, if the recordings are present."""

import csv
from collections import defaultdict

import pytest

from kernrec.gpu import find_gpu
from kernrec.kernel import load_kernel
from kernrec.recommender import Query
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from tests.helpers.paths import RECORDINGS, ROOT

TIMES = RECORDINGS / "anchors" / "textbook_rtx3060_rtx3070ti.csv"

pytestmark = pytest.mark.skipif(not TIMES.is_file(), reason="needs the recorded anchors in ../shared/data")


@pytest.fixture(scope="module")
def database(nvrtc, tmp_path_factory):
    return tmp_path_factory.mktemp("textbook") / "own.duckdb"


@pytest.mark.every(2)
@pytest.mark.parametrize("gpu", ["rtx3060", "rtx3070ti"])
@pytest.mark.parametrize(("name", "size"), [("matmul_shared", 4096), ("add_strided", 4096), ("grayscale", 8192)])
def test_textbook_kernel_matches_the_recorded_time_and_best_block_size(name, size, gpu, database):
    recorded: dict[int, float] = defaultdict(float)
    with TIMES.open() as rows:
        for row in csv.DictReader(rows):
            if (row["kernel"], row["gpu"], row["size"]) == (name, gpu, str(size)):
                recorded[int(row["block"])] = float(row["batch_s"])
    kernel = load_kernel(ROOT / "datasets" / "kernels" / "textbook" / f"{name}.toml")
    problem = kernel.definition.problem(kernel.dtypes[0], size=size)
    options = ProfilingOptions(processes=1, only=[{"block": block} for block in recorded])
    analyzed = analyze(kernel, problem, find_gpu(gpu), database, Query("latency", top=len(recorded)), options)
    recommendations = analyzed.answer.recommendations
    assert recorded[recommendations[0].config["block"]] <= 1.05 * min(recorded.values())
    for recommendation in recommendations:
        assert recommendation.latency_s.value == pytest.approx(recorded[recommendation.config["block"]], rel=0.2)
