"""How counts are held against recorded counters; on the recordings where they and the sources are at hand."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import compare_counters
import pytest
from compare_counters import COUNTERS, KERNELS, Comparison, Counter

from tests.helpers.paths import RECORDINGS, TOOLS

SOURCES = os.environ.get("KERNREC_RECORDED_SOURCES", "")
"""The folder of the recorded kernels' sources, which are other people's."""


def compared(name: str, recorded: float, counted: float, least: float = 0.0) -> Comparison:
    nothing = {counter.name: 0.0 for counter in COUNTERS}
    return Comparison(f"{counted:g}", nothing | {name: recorded}, nothing | {name: least}, nothing | {name: counted})


def test_a_score_is_the_median_and_the_ninth_decile_of_relative_errors() -> None:
    rows = [compared("registers", 100.0, counted) for counted in (100.0, 101.0, 98.0, 100.0, 150.0)]
    score = compare_counters.score(rows, "registers", worst=2)
    assert (score.median, score.ratio) == pytest.approx((0.01, 1.0))
    assert score.high == pytest.approx(0.5)
    assert [worst.config for worst in score.worst] == ["150", "98"]


def test_nothing_counted_of_nothing_is_right_and_something_of_nothing_is_wrong() -> None:
    assert compared("registers", 0.0, 0.0).ratio("registers") == 1.0
    assert compared("registers", 0.0, 5.0).ratio("registers") == float("inf")


def test_an_aim_is_missed_by_the_median_or_by_the_ninth_decile() -> None:
    counter = Counter("registers", (), lambda counts: 0.0, (0.03, 0.08))

    def missed(*counted: float) -> bool:
        rows = [compared("registers", 100.0, each) for each in counted]
        return compare_counters.misses(counter, compare_counters.score(rows, "registers"))

    assert not missed(103.0, 103.0, 103.0)
    assert missed(104.0, 104.0, 104.0)
    assert missed(*[100.0] * 8, 120.0, 120.0)


def test_the_report_names_what_misses_its_aim_and_leaves_out_what_was_not_recorded() -> None:
    lines = list(compare_counters.report("made up", [compared("warp instructions", 100.0, 120.0)], worst=1))
    assert [line.split("  ")[1] for line in lines if "%" in line] == ["warp instructions"]
    assert lines[-1] == "  warp instructions: 1.200 of the recorded: 120"


def test_reads_of_l2_are_compared_only_where_the_code_fits_the_instruction_cache() -> None:
    (reads,) = (counter for counter in COUNTERS if counter.name == "L2 read sectors")
    assert reads.compared({"code_bytes": 20_000})
    assert not reads.compared({"code_bytes": 100_000})
    left_out = Comparison("", {reads.name: 100.0}, {reads.name: 0.0}, {})
    lines = list(compare_counters.report("made up", [left_out, compared("registers", 100.0, 100.0)], worst=1))
    assert not any(reads.name in line for line in lines)
    assert compare_counters.score([left_out], reads.name).high == 0.0


def test_threads_of_a_class_are_counted_where_they_are_asked_for() -> None:
    (f32,) = (counter for counter in COUNTERS if counter.name == "f32 instructions")
    assert f32.counted({"lanes.fma32": 64.0, "lanes.alu": 1.0}) == 64.0


def test_a_kernel_without_source_or_recording_is_skipped(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, TOOLS / "compare_counters.py", "--sources", tmp_path, "--data", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [kernel.name for kernel in KERNELS]


@pytest.mark.skipif(
    not (SOURCES and (RECORDINGS / "counters").is_dir()),
    reason="needs ../shared/data/counters and the recorded kernels' sources in $KERNREC_RECORDED_SOURCES",
)
def test_memory_of_the_recorded_convolution_is_counted_exactly() -> None:
    kernel = KERNELS[0]
    (source,) = Path(SOURCES).rglob(kernel.source)
    recording = RECORDINGS / "counters" / "convolution-rtx2080ti.parquet"
    options = argparse.Namespace(seed=1, configs=3, processes=1)
    rows = list(compare_counters.sampled(kernel, source.read_text(), recording, options))
    assert len(rows) == 3
    for name in ("global load requests", "shared load wavefronts", "f32 instructions"):
        assert compare_counters.score(rows, name).high <= 0.01, name
