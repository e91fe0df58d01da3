"""A few trips of a long loop stand for the rest, and the counts are those of all trips."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernrec.profile.sample_profile import SAMPLING, sampled_counts
from kernrec.ptx import KernelLaunch, emulate
from kernrec.ptx.analysis.loops import counted_loops
from tests.helpers.ptx_text import cuda

TILED_PRODUCT = """
__shared__ float s[16][16], t[16][16];
int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 16 + ty, col = blockIdx.x * 16 + tx;
float sum = 0;
for (int k = 0; k < n; k += 16) {
    s[ty][tx] = x[row * n + k + tx]; t[ty][tx] = y[(k + ty) * n + col];
    __syncthreads();
    for (int i = 0; i < 16; i++) sum += s[ty][i] * t[i][tx];
    __syncthreads();
}
z[row * n + col] = sum;
"""
CHANNELS = """
int px = blockIdx.x * 16 + threadIdx.x, py = blockIdx.y * 16 + threadIdx.y;
float sum = 0;
for (int c = 0; c < n; c++)
    for (int r = 0; r < 3; r++)
        for (int q = 0; q < 3; q++)
            if (px + q >= 1 && px + q <= 32) sum += x[(c * 34 + py + r) * 34 + px + q] * y[(c * 3 + r) * 3 + q];
z[py * 32 + px] = sum;
"""
FLAT_CHANNELS = """
int px = blockIdx.x * 16 + threadIdx.x, py = blockIdx.y * 16 + threadIdx.y, c = 0, r = 0, q = 0;
float sum = 0;
for (int i = 0; i < 9 * n; i++) {
    sum += x[(c * 34 + py + r) * 34 + px + q] * y[i];
    if (++q == 3) { q = 0; if (++r == 3) { r = 0; c++; } }
}
z[py * 32 + px] = sum;
"""
REDUCTION = """
__shared__ float s[256];
int id = threadIdx.y * 16 + threadIdx.x, block = blockIdx.y * gridDim.x + blockIdx.x;
float sum = 0;
for (int i = id; i < n * n - 77; i += 256) sum += x[(block & 3) * n * n + i];
s[id] = sum;
__syncthreads();
for (int d = 128; d; d /= 2) { if (id < d) s[id] += s[id + d]; __syncthreads(); }
if (id == 0) z[block] = s[0];
"""
THREE_STAGES = """
__shared__ float s[3][256];
int id = threadIdx.y * 16 + threadIdx.x, stage = 0;
float sum = 0;
for (int k = 0; k < 300; k++) {
    s[stage][id] = x[k * 33 + id];
    __syncthreads();
    sum += s[stage][id * (stage + 1) & 255];
    stage = stage == 2 ? 0 : stage + 1;
}
z[id] = sum;
"""
GUARD_THAT_CHANGES = """
int id = threadIdx.y * 16 + threadIdx.x;
float sum = 0;
#pragma unroll 1
for (int k = 0; k < 500; k++) {
    sum += x[k * 8 + id];
    if (k < 300) sum += y[k * 256 + id];
    if (k == 411) sum += y[id * 32];
}
z[id] = sum;
"""
BITS_OF_THE_COUNTER = """
int id = threadIdx.y * 16 + threadIdx.x;
float sum = 0;
#pragma unroll 1
for (int k = 0; k < 600; k++) {
    sum += x[(k & 15) * 300 + id];
    if ((k & 127) == 100) sum += y[id * 32];
}
z[id] = sum;
"""
PLACE_ON_THE_STACK = """
volatile int place = threadIdx.y * 16 + threadIdx.x;
float sum = 0;
#pragma unroll 1
for (int k = 0; k < 500; k++) sum += x[k * 256 + place];
z[place] = sum;
"""
PLACE_THAT_IS_WRITTEN = """
volatile int place = threadIdx.y * 16 + threadIdx.x;
float sum = 0;
#pragma unroll 1
for (int k = 0; k < 200; k++) {
    if (k == 150) place = 32 * place;
    sum += x[k * 256 + place];
}
z[place] = sum;
"""
EDGE_OF_THE_GRID = """
int px = blockIdx.x * 16 + threadIdx.x, py = blockIdx.y * 16 + threadIdx.y;
float sum = 0;
if (px < 23 && py < 21) for (int k = 0; k < n; k++) sum += x[(k * 32 + py) * 32 + px];
if (px < 30) z[py * 32 + px] = sum;
"""
TWO_WAYS = """
int id = threadIdx.y * 16 + threadIdx.x;
float sum = 0;
if (id % 5 == 2) for (int k = 0; k < n; k++) sum += x[k * 256 + id];
else for (int k = 0; k < 2 * n; k++) sum += y[k * 100 + id];
z[id] = sum;
"""
LOOPS_OF_MANY_LENGTHS = """
int id = threadIdx.y * 16 + threadIdx.x;
float sum = 0;
for (int k = 0; k < n + 40 * (id & 3); k++) sum += x[k * 256 + id];
z[id] = sum;
"""
KERNELS = {
    "some lanes at the edge of the grid": (EDGE_OF_THE_GRID, 300, 0.8),
    "lanes that go two ways": (TWO_WAYS, 300, 0.8),
    "lanes that leave one after the other": (LOOPS_OF_MANY_LENGTHS, 300, 0.6),
    "tiled product": (TILED_PRODUCT, 512, 0.7),
    "channel loop": (CHANNELS, 100, 0.9),
    "channel loop in one with the filter's": (FLAT_CHANNELS, 50, 0.5),
    "reduction": (REDUCTION, 300, 0.8),
    "ring of three buffers": (THREE_STAGES, 300, 0.7),
    "guard that changes on the way": (GUARD_THAT_CHANGES, 500, 0.7),
    "bits of the counter": (BITS_OF_THE_COUNTER, 600, 0.0),
    "place that is on the stack": (PLACE_ON_THE_STACK, 500, 0.8),
}


def launch(body: str, n: int) -> tuple[Any, KernelLaunch]:
    module = cuda(f'extern "C" __global__ void k(const float* x, const float* y, float* z, int n) {{ {body} }}')
    buffers = {name: np.zeros(400_000, np.float32) for name in "xyz"}
    return module, KernelLaunch("k", (2, 2, 1), (16, 16, 1), ["x", "y", "z", np.int32(n)], buffers)


@pytest.mark.parametrize("name", KERNELS)
def test_extrapolated_counts_are_those_of_all_trips(name: str) -> None:
    body, n, share = KERNELS[name]
    module, launched = launch(body, n)
    full = sampled_counts(module, launched, replace(SAMPLING, extrapolate=False))
    short = sampled_counts(module, launched)
    assert short.pop("extrapolated", 0.0) >= share * full["issue"]
    assert short == pytest.approx(full, rel=1e-12)


FROM_DATA = {
    "a gather": "for (int k = 0; k < n; k++) sum += x[(int) y[k]];",
    "a place that drifts with data": "for (int k = 0; k < n; k++) sum += x[64 * k + ((int) y[k] & 31) + threadIdx.x];",
    "a guard from data": "for (int k = 0; k < n; k++) if (y[256 * k + threadIdx.x] > 2e5f) sum += x[k];",
    "lanes at an edge": "if (threadIdx.x + 16 * blockIdx.x < 27) for (int k = 0; k < n; k++) sum += x[(int) y[k]];",
    "an inner loop that data ends": """for (int k = 0; k < n; k++)
    for (int i = (int) y[k] & 7; i >= 0; i--) sum += x[8 * k + i];""",
}


@pytest.mark.parametrize("name", FROM_DATA)
def test_trips_that_follow_data_are_sampled_and_the_estimate_is_near(name: str) -> None:
    module, launched = launch(f"float sum = 0;\n#pragma unroll 1\n{FROM_DATA[name]} z[threadIdx.x] = sum;", 1200)
    launched.buffers["y"][:] = np.random.default_rng(1).integers(0, 400_000, 400_000)
    full = sampled_counts(module, launched, replace(SAMPLING, extrapolate=False))
    short = sampled_counts(module, launched)
    assert short.pop("sampled") == short.pop("extrapolated") > 0.6 * full["issue"]
    for metric, count in full.items():
        if metric.startswith(("issue", "lanes", "global.")):
            assert short[metric] == pytest.approx(count, rel=0.1), metric
    for metric in ("touch.x.read", "touch.y.read"):  # of which places between executed ones are guessed
        assert short[metric] == pytest.approx(full[metric], rel=0.2), metric


def test_what_a_loop_does_once_to_what_steers_it_is_not_missed() -> None:
    module, launched = launch(PLACE_THAT_IS_WRITTEN, 400)
    full = sampled_counts(module, launched, replace(SAMPLING, extrapolate=False))
    short = sampled_counts(module, launched)
    assert short["sampled"] > 0.5 * full["issue"]
    assert short["global.x.read_sectors"] == pytest.approx(full["global.x.read_sectors"], rel=0.05)


TO_BE_RUN_WHOLE = {
    "an end from data": "for (int k = 0; y[k] > -1.0f && k < n; k++) sum += x[k];",
    "a place that data leads to": "for (int k = 0, i = 0; k < n; k++) { i = (int) y[i]; sum += x[i]; }",
    "a place that a branch moves": """for (int k = 0, i = 0; k < n; k++) {
    if (y[k] > 5e4f) { i += 3; z[i] = k; }
    sum += x[i];
}""",
    "few trips": "for (int k = 0; k < 60; k++) sum += x[(int) y[k]];",
}


@pytest.mark.parametrize("name", TO_BE_RUN_WHOLE)
def test_a_loop_whose_way_data_decides_runs_whole(name: str) -> None:
    module, launched = launch(f"float sum = 0;\n#pragma unroll 1\n{TO_BE_RUN_WHOLE[name]} z[threadIdx.x] = sum;", 400)
    launched.buffers["y"][:] = np.random.default_rng(1).integers(0, 100_000, 400_000)
    assert "extrapolated" not in sampled_counts(module, launched)


def test_a_sum_over_a_warp_behind_a_loop_does_not_make_its_sum_steer() -> None:
    body = "for (int k = 0; k < n; k++) sum += x[k * 256 + threadIdx.x];"
    shuffle = """
    asm("{ .reg .pred p; .reg .f32 r; shfl.sync.down.b32 r|p, %0, 1, 0x1f, 0xffffffff; @p add.f32 %0, %0, r; }"
        : "+f"(sum));
    """
    module, _ = launch(f"float sum = 0;\n#pragma unroll 1\n{body} {shuffle} z[threadIdx.x] = sum;", 400)
    assert [loop.steady for loop in counted_loops(module.functions["k"]).values()] == [True]


def test_results_are_never_extrapolated() -> None:
    module, launched = launch("float sum = 0; for (int k = 0; k < n; k++) sum += x[k]; z[threadIdx.x] = sum;", 1000)
    launched.buffers["x"][:] = 1
    assert "extrapolated" not in emulate(module, launched)
    assert (launched.buffers["z"][:16] == 1000).all()


def test_counts_of_trips_that_turn_out_otherwise_come_from_all_trips() -> None:
    # The compiler cannot know, nor can the comparisons show, that every 2^13 the product wraps around.
    body = """
    unsigned id = threadIdx.x; float sum = 0;
    #pragma unroll 1
    for (unsigned k = 0; k < n; k++) { unsigned far = __umulhi(k, 1u << 24); sum += x[id + 4 * k + far * far]; }
    z[id] = sum;
    """
    module, launched = launch(body, 900)
    full = sampled_counts(module, launched, replace(SAMPLING, extrapolate=False))
    short = sampled_counts(module, launched)
    short.pop("extrapolated", None)
    assert short == pytest.approx(full, rel=1e-12)
