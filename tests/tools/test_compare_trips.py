"""Counts of some trips beside those of all: what is printed, on a kernel whose long loop follows data."""

from pathlib import Path

import compare_trips

from kernrec.kernel import load_kernel

SPEC = """
name = "gather"
source = "gather.cu"
[problem]
dims = { n = 256 }
[problem.tensors]
x = { shape = ["4096"] }
where = { shape = ["1000"], dtype = "i32", values = "integers 0 4096" }
y = { shape = ["n"], role = "output" }
[tunables]
threads = { values = [64] }
[[launch]]
entry = "gather"
grid = ["ceil_div(n, threads)"]
block = ["threads"]
arguments = ["x", "where", "y"]
"""
SOURCE = """
extern "C" __global__ void gather(const float* x, const int* where, float* y) {
    float sum = 0;
    #pragma unroll 1
    for (int i = 0; i < 1000; i++) sum += x[where[i]];
    y[blockIdx.x * THREADS + threadIdx.x] = sum;
}
"""


def test_a_config_is_profiled_with_some_trips_and_with_all(tmp_path: Path) -> None:
    (tmp_path / "gather.cu").write_text(SOURCE)
    (tmp_path / "kernel.toml").write_text(SPEC)
    short, full = compare_trips.both(load_kernel(tmp_path / "kernel.toml"), {"threads": 64}, 80)
    assert short.counts["sampled"] > 0.5 * full.counts["issue"]
    assert "sampled" not in full.counts
    assert full.counts["issue"] > 1000
    assert not {"issue", "lanes"} & {metric for metric, _, _ in compare_trips.differences(short.counts, full.counts)}


def test_a_metric_is_printed_where_it_differs_by_more_than_a_percent() -> None:
    full = {"same": 10.0, "near": 1000.0, "far": 100.0, "missing": 5.0, "none": 0.0}
    short = {"same": 10.0, "near": 1005.0, "far": 102.0, "none": 0.0}
    assert list(compare_trips.differences(short, full)) == [("far", 100.0, 102.0), ("missing", 5.0, 0.0)]
