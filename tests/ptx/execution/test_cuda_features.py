"""Test that typical kernels with intrinsics, calls and double precision match NumPy."""

import re

import numpy as np
import pytest

from kernrec.compile.nvrtc import header_folders
from kernrec.ptx import EmulationError, KernelLaunch, emulate
from tests.helpers.ptx_text import cuda

ARCHS = pytest.mark.parametrize("arch", ["sm_75", "sm_100"])
N = 64
RNG = np.random.default_rng(7)
FLOATS = RNG.uniform(-4, 4, N).astype(np.float32)


def run(source: str, arch: str, *arguments: np.ndarray | int, grid: int = 1, shared_bytes: int = 0) -> dict[str, int]:
    """Run the only kernel of a source with N threads per block, and change the arrays in place."""
    module = cuda(source, arch)
    buffers = {f"argument{i}": a for i, a in enumerate(arguments) if isinstance(a, np.ndarray)}
    order = [f"argument{i}" if isinstance(a, np.ndarray) else a for i, a in enumerate(arguments)]
    (entry,) = module.entries
    return emulate(
        module, KernelLaunch(entry, (grid,), (N,), order, buffers, shared_bytes=shared_bytes), check_races=True
    )


ATOMICS = r"""
extern "C" __global__ void atomics(int* a, float* f, unsigned long long* u, double* d, unsigned* flags) {
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
    atomicAdd(a, i); atomicMax(a + 1, i); atomicMin(a + 2, -i); atomicExch(a + 3, 7); atomicCAS(a + 4, 0, 5);
    atomicSub(a + 5, i); atomicAnd(flags, ~(1u << i % 32)); atomicOr(flags + 1, 1u << i % 32);
    atomicXor(flags + 2, 1u << i % 31); atomicInc(flags + 3, 9u); atomicDec(flags + 4, 9u);
    atomicAdd(f, 0.5f); atomicAdd(u, 3ull); atomicMax(u + 1, i + (1ull << 40)); atomicAdd(d, 0.25);
    int* place = reinterpret_cast<int*>(f + 1);
    int seen = *place, assumed;
    do {  // the largest of the floats
        assumed = seen;
        seen = atomicCAS(place, assumed, __float_as_int(fmaxf(i * 1.5f, __int_as_float(assumed))));
    } while (seen != assumed);
    __shared__ int of_block[2];
    if (threadIdx.x < 2) of_block[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(of_block, 1); atomicMax(of_block + 1, i);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd_block(a + 6, of_block[0]); atomicAdd_system(a + 7, of_block[1]);
        __threadfence();
    }
}
"""


@ARCHS
def test_atomics_of_every_kind_match_the_reference(arch):
    a, f, u = np.zeros(8, np.int32), np.zeros(2, np.float32), np.zeros(2, np.uint64)
    d, flags = np.zeros(1), np.array([2**32 - 1, 0, 0, 0, 0], np.uint32)
    run(ATOMICS, arch, a, f, u, d, flags, grid=2)
    total, count = 128 * 127 // 2, 128
    assert a.tolist() == [total, 127, -127, 7, 5, -total, count, 63 + 127]
    assert (f.tolist(), u.tolist(), d.tolist()) == ([64.0, 190.5], [3 * count, (1 << 40) + 127], [32.0])
    odd = sum(1 << bit for bit in range(31) if sum(i % 31 == bit for i in range(count)) % 2)
    assert flags.tolist() == [0, 2**32 - 1, odd, count % 10, (10 - count % 10) % 10]


DOUBLES = r"""
extern "C" __global__ void doubles(const double* a, const double* b, double* out) {
    const int i = threadIdx.x; const double x = a[i], y = b[i]; int at = i;
    auto put = [&](double v) { out[at] = v; at += 64; };
    put(fma(x, y, 0.1)); put(x / y); put(sqrt(fabs(x))); put(rsqrt(fabs(x))); put(exp(x)); put(log(fabs(x)));
    put(sin(x)); put(cos(1e6 * y)); put(pow(fabs(x), y)); put(floor(x)); put(rint(y)); put(fmin(x, y)); put(tanh(x));
    put(double((long long)(x * 1e12))); put(fmod(x, 0.7)); put(erf(y)); put(float(x)); put(sqrtf(float(fabs(y))) / 3.f);
}
"""


@ARCHS
def test_double_precision_library_functions_match_numpy(arch):
    from math import erf

    x, y = RNG.uniform(-4, 4, (2, N))
    out = np.zeros(18 * N)
    run(DOUBLES, arch, x, y, out)
    size = np.abs(x)
    single = np.sqrt(np.abs(y).astype(np.float32)) / np.float32(3)
    expected = [
        x * y + 0.1, x / y, np.sqrt(size), 1 / np.sqrt(size), np.exp(x), np.log(size), np.sin(x), np.cos(1e6 * y),
        size**y, np.floor(x), np.rint(y), np.minimum(x, y), np.tanh(x), np.trunc(x * 1e12), np.fmod(x, 0.7),
        [erf(v) for v in y], x.astype(np.float32), single,
    ]  # fmt: skip
    for number, (got, wanted) in enumerate(zip(out.reshape(-1, N), expected, strict=True)):
        assert np.allclose(got, wanted, rtol=1e-14, atol=1e-15), f"result {number}"


CALLS = r"""
struct Triple { float a; int b; double c; };
__device__ __noinline__ float poly(float x, int n) { float r = 0; for (int i = 0; i < n; ++i) r = r * x + i; return r; }
__device__ __noinline__ Triple twice(Triple p) { p.a *= 2; p.b += 1; p.c = p.a * p.b; return p; }
__device__ __noinline__ void exchange(float* a, float* b) { const float t = *a; *a = poly(*b, 3); *b = t; }
__constant__ float table[4] = {1, 2, 4, 8};
__device__ int calls = 5;
extern "C" __global__ void call(const float* x, float* y) {
    const int i = threadIdx.x;
    Triple p = twice({poly(x[i], i % 5), i, 0});
    float a = p.a, b = float(p.c);
    exchange(&a, &b);
    if (i % 2) a += poly(b, 2) * table[i % 4];
    y[i] = a - b + calls;
}
"""


@ARCHS
def test_functions_that_are_not_inlined_can_be_called(arch):
    x = FLOATS
    y = np.zeros(N, np.float32)
    module = cuda(CALLS, arch)
    assert any(ins.opcode == "call" for ins in module.functions["call"].instructions)
    run(CALLS, arch, x, y)

    def poly(v: float, n: int) -> float:
        return sum(i * v ** (n - 1 - i) for i in range(n))

    for i, v in enumerate(x.astype(np.float64)):
        a = 2 * poly(v, i % 5)
        a, b = poly(a * (i + 1), 3), a
        a += poly(b, 2) * 2.0 ** (i % 4) if i % 2 else 0
        assert y[i] == pytest.approx(a - b + 5, rel=1e-4, abs=1e-4)


GROUPS = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void groups(const float* x, float* y) {
    const auto block = cg::this_thread_block();
    const auto tile = cg::tiled_partition<8>(block);
    float v = x[block.thread_rank()];
    for (int step = tile.size() / 2; step; step /= 2) v += tile.shfl_down(v, step);
    v = tile.shfl(v, 0);
    tile.sync(); block.sync();
    if (block.thread_rank() % 3 == 0) {
        const auto some = cg::coalesced_threads();
        v += some.size() + 0.5f * some.thread_rank();
    }
    y[block.thread_rank()] = v + tile.meta_group_rank();
}
"""


def test_cooperative_groups_match_the_reference():
    pytest.importorskip("cupy", reason="compiling CUDA needs CuPy: pip install '.[cuda13]'")
    if not any((folder / "nv" / "target").is_file() for folder in header_folders()):
        pytest.skip("cooperative_groups.h needs the CUDA C++ core libraries: pip install nvidia-cuda-cccl")
    x = np.arange(N, dtype=np.float32)
    y = np.zeros(N, np.float32)
    run(GROUPS, "sm_86", x, y)
    i = np.arange(N)
    v = x.reshape(-1, 8).sum(axis=1).repeat(8) + i // 8
    for warp in (i[:32], i[32:]):
        some = warp[warp % 3 == 0]
        v[some] += len(some) + 0.5 * np.arange(len(some))
    assert y.tolist() == v.tolist()


BRANCHES = r"""
extern "C" __global__ void branches(const int* x, int* y, int* counts, int n) {
    extern __shared__ int kept[];
    const int i = threadIdx.x, v = x[i];
    int r, keep[16];
    switch (v % 10) {
        case 0: r = v * 3; break;
        case 1: r = 7 - v; break;
        case 2: r = v ^ 99; break;
        case 3: r = v / 3; break;
        case 4: r = v << 2; break;
        case 5: y[i] = 4; return;
        case 6: r = v * v; break;
        case 7: r = -v; break;
        case 8: r = v & 12; break;
        default: r = 100;
    }
    for (int j = 0; j < 16; ++j) keep[j] = __ldg(x + (i + j) % n);
    for (int j = 0; j < n; ++j) keep[(j * 7 + i) % 16] += r;
    kept[i] = keep[(i + 3) % 16];
    __syncwarp();
    y[i] = kept[i];
}
"""


@ARCHS
def test_jump_tables_early_returns_and_local_arrays_work(arch):
    x = RNG.integers(0, 100, N).astype(np.int32)
    y, counts = np.zeros(N, np.int32), np.zeros(4, np.int32)
    run(BRANCHES, arch, x, y, counts, 40, shared_bytes=4 * N)
    for i, v in enumerate(x.tolist()):
        if v % 10 == 5:
            assert y[i] == 4
            continue
        r = [v * 3, 7 - v, v ^ 99, v // 3, v << 2, 0, v * v, -v, v & 12, 100][v % 10]
        keep = [int(x[(i + j) % 40]) for j in range(16)]
        for j in range(40):
            keep[(j * 7 + i) % 16] += r
        assert y[i] == keep[(i + 3) % 16]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("__device__ __noinline__ int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2) * n; }\n"
         'extern "C" __global__ void k(int* x) { x[threadIdx.x] = f(threadIdx.x); }', "call.uni: of a pointer"),
        ('extern "C" __global__ void k(int* x) { assert(*x); }', "__assertfail.* trapped"),
        ('extern "C" __global__ void k(int* x) { asm("fns.b32 %0, 5, 0, 1;" : "=r"(*x)); }', "not support fns.b32"),
    ],
    ids=["recursion", "assert", "fns"],
)  # fmt: skip
def test_unsupported_instruction_is_named_with_its_line(source, message):
    with pytest.raises(EmulationError, match=message) as raised:
        run(source, "sm_86", np.zeros(N, np.int32))
    assert re.search(r"PTX line \d+", str(raised.value))


HEAP = """
extern "C" __global__ void k(int* x, unsigned long long* places, int bytes) {
    int* own = (int*)malloc(bytes);
    places[threadIdx.x] = (unsigned long long)own;
    int* again = new int(x[threadIdx.x]);
    if (own) own[0] = *again, own[bytes / 4 - 1] = 7;
    __syncthreads();
    int* other = (int*)places[63 - threadIdx.x];
    x[threadIdx.x] = other ? other[0] : -1;
    delete again;
    free(own);
}
"""


@ARCHS
def test_device_malloc_returns_separate_memory_until_the_heap_is_full(arch):
    x, places = RNG.integers(0, 100, N).astype(np.int32), np.zeros(N, np.uint64)
    values = x.copy()
    run(HEAP, arch, x, places, 20)
    assert (x == values[::-1]).all()
    starts = np.sort(places)
    assert (np.diff(starts) >= 20).all()
    assert (starts % 16 == 0).all()
    run(HEAP, arch, x, places, 8 << 20)
    assert (np.count_nonzero(places), (x == -1).sum()) == (7, N - 7)


POINTERS = """
struct Shape { __device__ virtual int area(int n) const = 0; };
struct Square : Shape { __device__ int area(int n) const override { return n * n; } };
struct Strip : Shape { __device__ __noinline__ int area(int n) const override { return 3 * n; } };
__device__ __noinline__ int up(int n) { return n + 1; }
__device__ __noinline__ int down(int n) { return n - 1; }
__device__ int (*steps[2])(int) = { up, down };
extern "C" __global__ void k(int* x) {
    int i = threadIdx.x;
    Square square; Strip strip;
    const Shape* shape = x[i] & 1 ? (const Shape*) &square : (const Shape*) &strip;
    x[i] = shape->area(i) * 1000 + steps[x[i] >> 1](i);
}
"""


@ARCHS
def test_functions_can_be_called_through_pointers_and_virtually(arch):
    x = RNG.integers(0, 4, N).astype(np.int32)
    i, before = np.arange(N), x.copy()
    run(POINTERS, arch, x)
    np.testing.assert_array_equal(x, np.where(before & 1, i * i, 3 * i) * 1000 + np.where(before >> 1, i - 1, i + 1))
