"""The reads that consecutive blocks have in common, of kernels that number their tiles in an order of their own."""

import numpy as np
import pytest

from kernrec.compile import compile_source
from kernrec.model.prior.dram_traffic import Footprint, sampled_dram_bytes
from kernrec.profile import wave_reuse
from kernrec.profile.wave_reuse import wave_metrics
from kernrec.ptx import KernelLaunch, parse

SOURCE = """
extern "C" __global__ void tiles(const float* a, const float* b, float* c, int rows, int columns, int band) {
    int inside = blockIdx.x % (band * columns), first = blockIdx.x / (band * columns) * band;
    int row = first + inside % band, column = inside / band;
    float sum = a[row * blockDim.x + threadIdx.x] + b[column * blockDim.x + threadIdx.x];
    __syncthreads();
    c[(row * columns + column) * blockDim.x + threadIdx.x] = sum;
}
"""
ROWS, COLUMNS, THREADS = 32, 16, 64


def launch(band: int, blocks: int = ROWS * COLUMNS) -> KernelLaunch:
    buffers = {name: np.zeros(size * THREADS, np.float32) for name, size in zip("abc", (32, 16, 512), strict=True)}
    arguments = ["a", "b", "c", np.int32(ROWS), np.int32(COLUMNS), np.int32(band)]
    return KernelLaunch("tiles", (blocks, 1, 1), (THREADS, 1, 1), arguments, buffers, 0, {}, {})


@pytest.fixture
def module(nvrtc):
    return parse(compile_source(SOURCE, 80).ptx)


def test_bands_of_eight_rows_are_detected(module):
    metrics = wave_metrics(module, launch(8), 10_000, [1.0, 0.0])
    assert [metrics[f"wave.a.{n}"] for n in (2, 8, 64, 128)] == [2, 8, 8, 8]
    assert [metrics[f"wave.b.{n}"] for n in (2, 8, 64, 128)] == [1, 1, 8, 16]


def test_single_band_reads_another_row_each_time(module):
    metrics = wave_metrics(module, launch(32), 10_000, [1.0, 0.0])
    assert metrics["wave.a.32"] == 32
    assert metrics["wave.b.32"] == 1


def test_reads_after_a_barrier_are_traced_on_request(nvrtc):
    """As where threads hand each other their addresses through shared memory."""
    handed = SOURCE.replace(
        "    float sum", "    __shared__ int rows_of[64]; rows_of[63 - threadIdx.x] = row; __syncthreads();\n"
    )
    handed = handed.replace("= a[row *", "    row = rows_of[threadIdx.x];\n    float sum = a[row *")
    behind = parse(compile_source(handed, 80).ptx)
    assert wave_metrics(behind, launch(8), 10_000, [1.0, 0.0]) == {}
    metrics = wave_metrics(behind, launch(8), 10_000, [1.0, 0.0], wanted=["a", "b"])
    assert [metrics[f"wave.a.{n}"] for n in (2, 8, 64, 128)] == [2, 8, 8, 8]
    assert [metrics[f"wave.b.{n}"] for n in (2, 8, 64, 128)] == [1, 1, 8, 16]


COPIES = """
extern "C" __global__ void copies(const int* x, int* y, int n, int part) {
    __shared__ int own[512];
    for (int bin = threadIdx.x; bin < 512; bin += 64) own[bin] = x[bin];
    __syncthreads();
    for (int i = blockIdx.x * 64 + threadIdx.x; i < n; i += gridDim.x * 64) atomicAdd(&own[x[i] & 511], 1);
    __syncthreads();
    for (int bin = threadIdx.x; bin < 512; bin += 64)
        if (own[bin] > part) atomicAdd(&y[bin], own[bin]);
}
"""


def test_buffers_that_are_only_added_to_need_no_extra_pass(nvrtc, monkeypatch):
    module = parse(compile_source(COPIES, 80).ptx)
    x = np.arange(1 << 16, dtype=np.int32)
    arguments = ["x", "y", np.int32(len(x)), np.int32(1)]
    started = KernelLaunch("copies", (512, 1, 1), (64, 1, 1), arguments, {"x": x, "y": np.zeros(512, np.int32)})
    budgets, first_reads = [], wave_reuse._first_reads

    def counted(module, launch, window, budget):
        budgets.append(budget)
        return first_reads(module, launch, window, budget)

    monkeypatch.setattr(wave_reuse, "_first_reads", counted)
    last = wave_metrics(module, started, 10_000, [1.0, 0.0], wanted=["x", "y"])
    assert len(budgets) == 1
    monkeypatch.setattr(wave_reuse, "_can_be_repeated", lambda function, launch: False)
    assert wave_metrics(module, started, 10_000, [1.0, 0.0], wanted=["x", "y"]) == last
    assert len(budgets) == 4


def test_sampling_is_skipped_if_neighbors_suffice(module):
    assert wave_metrics(module, launch(8), 10_000, [1.0, 0.9]) == {}
    assert wave_metrics(module, launch(8, 4), 10_000, [1.0, 0.0]) == {}


def test_bands_save_wave_traffic_that_l2_cannot_keep():
    blocks, wave, own = np.array([4096.0]), np.array([64.0]), np.array([1 << 20])

    def moved(a: tuple[float, ...], b: tuple[float, ...]) -> float:
        size = np.array([64 * 2.0**20])
        fresh = (np.array([1.0]), np.array([0.0]), np.array([0.0]))
        shared = (np.array([0.0]), np.array([0.0]), np.array([0.0]))
        windows = [tuple(np.array([ratio]) for ratio in ratios) for ratios in (a, b)]
        footprints = [
            Footprint(own * 1.0, fresh, size, False, in_window=windows[0]),
            Footprint(own * 1.0, shared, size, False, in_window=windows[1]),
        ]
        ones = np.array([1.0])
        return float(sampled_dram_bytes((blocks, ones, ones), footprints, wave, 2.0**25)[0])

    in_bands = moved((2, 4, 8, 8, 8, 8), (1, 1, 1, 2, 4, 8))
    in_columns = moved((2, 4, 8, 16, 32, 64), (1, 1, 1, 1, 1, 1))
    assert in_bands < 0.5 * in_columns
