"""Test that CUDA C++ with intrinsics, calls, clusters and double precision gives the results of NumPy."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.compile.nvrtc import header_folders
from kernrec.ptx import EmulationError, KernelLaunch, emulate
from kernrec.ptx.state.launch_layout import Clusters
from tests.helpers.paths import beside
from tests.helpers.ptx_text import cuda

ARCHS = pytest.mark.parametrize("arch", ["sm_75", "sm_86", "sm_100"])
N = 64
RNG = np.random.default_rng(7)
FLOATS = RNG.uniform(-4, 4, N).astype(np.float32)


def run(source: str, arch: str, *arguments: np.ndarray | int, grid: int = 1, shared_bytes: int = 0) -> dict[str, int]:
    """Run the only kernel of a source, and change the array arguments in place."""
    module = cuda(source, arch)
    buffers = {f"argument{i}": a for i, a in enumerate(arguments) if isinstance(a, np.ndarray)}
    order = [f"argument{i}" if isinstance(a, np.ndarray) else a for i, a in enumerate(arguments)]
    (entry,) = module.entries
    return emulate(
        module, KernelLaunch(entry, (grid,), (N,), order, buffers, shared_bytes=shared_bytes), check_races=True
    )


@ARCHS
def test_atomics_of_every_kind_match_the_reference(arch):
    a, f, u = np.zeros(8, np.int32), np.zeros(2, np.float32), np.zeros(2, np.uint64)
    d, flags = np.zeros(1), np.array([2**32 - 1, 0, 0, 0, 0], np.uint32)
    run(beside(__file__, "atomics.cu"), arch, a, f, u, d, flags, grid=2)
    total, count = 128 * 127 // 2, 128
    assert a.tolist() == [total, 127, -127, 7, 5, -total, count, 63 + 127]
    assert (f.tolist(), u.tolist(), d.tolist()) == ([64.0, 190.5], [3 * count, (1 << 40) + 127], [32.0])
    odd = sum(1 << bit for bit in range(31) if sum(i % 31 == bit for i in range(count)) % 2)
    assert flags.tolist() == [0, 2**32 - 1, odd, count % 10, (10 - count % 10) % 10]


@ARCHS
def test_double_precision_library_functions_match_numpy(arch):
    from math import erf

    x, y = RNG.uniform(-4, 4, (2, N))
    out = np.zeros(18 * N)
    run(beside(__file__, "doubles.cu"), arch, x, y, out)
    size = np.abs(x)
    single = np.sqrt(np.abs(y).astype(np.float32)) / np.float32(3)
    expected = [
        x * y + 0.1, x / y, np.sqrt(size), 1 / np.sqrt(size), np.exp(x), np.log(size), np.sin(x), np.cos(1e6 * y),
        size**y, np.floor(x), np.rint(y), np.minimum(x, y), np.tanh(x), np.trunc(x * 1e12), np.fmod(x, 0.7),
        [erf(v) for v in y], x.astype(np.float32), single,
    ]  # fmt: skip
    for number, (got, wanted) in enumerate(zip(out.reshape(-1, N), expected, strict=True)):
        assert np.allclose(got, wanted, rtol=1e-14, atol=1e-15), f"result {number}"


CALLS = beside(__file__, "cuda_features_calls.cu")


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


def test_cooperative_groups_match_the_reference():
    pytest.importorskip("cupy", reason="compiling CUDA needs CuPy: pip install '.[cuda13]'")
    if not any((folder / "nv" / "target").is_file() for folder in header_folders()):
        pytest.skip("cooperative_groups.h needs the CUDA C++ core libraries: pip install nvidia-cuda-cccl")
    x = np.arange(N, dtype=np.float32)
    y = np.zeros(N, np.float32)
    run(beside(__file__, "groups.cu"), "sm_86", x, y)
    i = np.arange(N)
    v = x.reshape(-1, 8).sum(axis=1).repeat(8) + i // 8
    for warp in (i[:32], i[32:]):
        some = warp[warp % 3 == 0]
        v[some] += len(some) + 0.5 * np.arange(len(some))
    assert y.tolist() == v.tolist()


@ARCHS
def test_jump_tables_early_returns_and_local_arrays_work(arch):
    x = RNG.integers(0, 100, N).astype(np.int32)
    y, counts = np.zeros(N, np.int32), np.zeros(4, np.int32)
    run(beside(__file__, "branches.cu"), arch, x, y, counts, 40, shared_bytes=4 * N)
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
         'extern "C" __global__ void k(int* x) { x[threadIdx.x] = f(threadIdx.x); }', "call.uni: .*calls itself"),
        ('extern "C" __global__ void k(int* x) { assert(*x); }', "__assertfail.* trapped"),
        ('extern "C" __global__ void k(int* x) { asm("fns.b32 %0, 5, 0, 1;" : "=r"(*x)); }', "not support fns.b32"),
    ],
    ids=["recursion", "assert", "fns"],
)  # fmt: skip
def test_unsupported_instruction_is_named_with_its_line(source, message):
    with pytest.raises(EmulationError, match=message) as raised:
        run(source, "sm_86", np.zeros(N, np.int32))
    assert re.search(r"PTX line \d+", str(raised.value))


HEAP = beside(__file__, "heap.cu")


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


@ARCHS
def test_functions_can_be_called_through_pointers_and_virtually(arch):
    x = RNG.integers(0, 4, N).astype(np.int32)
    i, before = np.arange(N), x.copy()
    run(beside(__file__, "pointers.cu"), arch, x)
    np.testing.assert_array_equal(x, np.where(before & 1, i * i, 3 * i) * 1000 + np.where(before >> 1, i - 1, i + 1))


@ARCHS
def test_math_library_matches_numpy(arch):
    x, y = np.linspace(0.05, 30, 90).astype(np.float32), np.zeros(90, np.float32)
    emulate(
        cuda(beside(__file__, "math_functions.cu"), arch),
        KernelLaunch("functions", (1,), (96,), ["x", "y", np.int32(90)], {"x": x, "y": y}),
    )
    v = x.astype(np.float64)
    pieces = np.stack([np.exp(v), np.sin(v), np.log(v), np.sqrt(v), v / 3, v**1.5])
    i = np.arange(90)
    total = sum(pieces[(j + i) % 6, i] * (j + 1) for j in range(6))
    want = np.select([i % 5 == 0, i % 5 == 1, i % 5 == 2, i % 5 == 3], [total + 1, total * 2, total - 3, -total], total)
    np.testing.assert_allclose(y, want, rtol=2e-6, atol=1e-5)


RING = beside(__file__, "ring.cu")


@pytest.mark.parametrize("fixed", [True, False])
def test_blocks_of_a_cluster_share_their_shared_memory(fixed):
    out, mine = np.zeros((4, 6, 32), np.int32), np.zeros((4, 6, 32), np.int32)
    program = cuda(RING.replace("CLUSTER", "__cluster_dims__(3, 2, 1)" if fixed else ""), "sm_90")
    launch = KernelLaunch("k", (6, 4), (32,), ["o", "m"], {"o": out, "m": mine}, cluster=() if fixed else (3, 2))
    emulate(program, launch)
    y, x = np.indices((4, 6))
    rank = y % 2 * 3 + x % 3
    lane = np.arange(32)
    np.testing.assert_array_equal(out, ((rank + 1) % 6 * 100)[:, :, None] + 31 - lane)
    place = 100000 * (x % 3 + 10 * (y % 2))
    np.testing.assert_array_equal(mine, (rank * 100 + place)[:, :, None] + lane + np.where(lane == 0, 32000, 0))


@given(st.tuples(*[st.integers(1, 3)] * 3), st.tuples(*[st.integers(1, 2)] * 3))
def test_clusters_partition_the_grid(clusters, cluster):
    x, y, z = (a * b for a, b in zip(clusters, cluster, strict=True))
    shape, blocks = Clusters((x, y, z), cluster), range(x * y * z)
    ordered = shape.ordered(blocks)
    assert sorted(ordered) == list(blocks)
    for first in range(0, len(ordered), shape.size):
        together = ordered[first : first + shape.size]
        assert shape.complete(together[-1:]) == together
        corners = {
            tuple(c // e for c, e in zip((b % x, b // x % y, b // (x * y)), cluster, strict=True)) for b in together
        }
        assert len(corners) == 1


def test_block_that_misses_its_cluster_barrier_is_reported():
    waits = 'if (rank) sync(); else asm volatile("bar.sync 1, 64;");'
    source = RING.replace("CLUSTER", "__cluster_dims__(2, 1, 1)").replace("sync();\n    asm", waits + "\n    asm", 1)
    buffers = {"o": np.zeros(64, np.int32), "m": np.zeros(64, np.int32)}
    with pytest.raises(EmulationError, match="waits at the barrier of its cluster"):
        emulate(cuda(source, "sm_90"), KernelLaunch("k", (2,), (32,), ["o", "m"], buffers))


def test_address_outside_the_cluster_is_an_error():
    source = beside(__file__, "outside_the_cluster.cu")
    with pytest.raises(EmulationError, match="of shared memory"):
        emulate(cuda(source, "sm_90"), KernelLaunch("k", (2,), (32,), ["o"], {"o": np.zeros(1, np.int32)}))


def test_multicast_copy_reaches_the_blocks_of_its_mask():
    source = beside(__file__, "multicast.cu")
    x, out = np.arange(64, dtype=np.int32), np.zeros((2, 4, 32), np.int32)
    launch = KernelLaunch("k", (8,), (32,), ["x", "o"], {"x": x, "o": out})
    counts = emulate(cuda(source, "sm_90"), launch, check_races=True)
    for cluster in range(2):
        for rank in range(4):
            wanted = np.full(32, -1) if rank == 1 else x[cluster * 32 : cluster * 32 + 32]
            np.testing.assert_array_equal(out[cluster, rank], wanted)
    assert counts["global.x.read_bytes"] == 256  # once per cluster


@pytest.mark.parametrize(("store", "wanted"), [
    ("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32", lambda lane, rank: lane + 100 * rank),
    (
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32",
        lambda lane, rank: 7 + lane + 100 * rank,
    ),
])  # fmt: skip
def test_store_counted_by_an_mbarrier_reaches_another_block(store, wanted):
    source = beside(__file__, "counted_stores.cu")
    out = np.zeros((4, 32), np.int32)
    launch = KernelLaunch("k", (4,), (32,), ["o"], {"o": out})
    emulate(cuda(source.replace("STORE", store), "sm_90"), launch, check_races=True)
    np.testing.assert_array_equal(out, [wanted(np.arange(32), block % 2 ^ 1) for block in range(4)])
