"""Test which reads consecutive blocks share, in kernels with their own tile order."""

import numpy as np
import pytest

from kernrec.compile import compile_source
from kernrec.model.prior.dram_traffic import Footprint, sampled_dram_bytes
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


def test_reads_after_a_barrier_are_traced_on_request(nvrtc):
    """The kernel passes addresses between threads through shared memory before it reads."""
    handed = SOURCE.replace(
        "    float sum", "    __shared__ int rows_of[64]; rows_of[63 - threadIdx.x] = row; __syncthreads();\n"
    )
    handed = handed.replace("= a[row *", "    row = rows_of[threadIdx.x];\n    float sum = a[row *")
    behind = parse(compile_source(handed, 80).ptx)
    assert wave_metrics(behind, launch(8), 10_000, [1.0, 0.0]) == {}
    metrics = wave_metrics(behind, launch(8), 10_000, [1.0, 0.0], wanted=["a", "b"])
    assert [metrics[f"wave.a.{n}"] for n in (2, 8, 64, 128)] == [2, 8, 8, 8]
    assert [metrics[f"wave.b.{n}"] for n in (2, 8, 64, 128)] == [1, 1, 8, 16]


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
