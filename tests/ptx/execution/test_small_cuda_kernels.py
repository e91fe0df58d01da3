"""Test that CUDA C++, compiled by NVRTC for several architectures, gives NumPy's results on the CPU."""

import numpy as np
import pytest

from kernrec.ptx import EmulationError, KernelLaunch, emulate
from tests.helpers.paths import beside
from tests.helpers.ptx_text import cuda

ARCHS = ["sm_75", "sm_86", "sm_100"]
RNG = np.random.default_rng(1)

SMALL = beside(__file__, "small_cuda_kernels.cu")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("n", "block", "grid"), [(1, 32, 1), (1000, 96, 3), (4097, 256, 20), (7, 1, 7)])
def test_vector_addition_of_odd_sizes_is_correct(arch, n, block, grid):
    a, b = RNG.standard_normal((2, n)).astype(np.float32)
    c = np.zeros(n, np.float32)
    buffers = {"a": a, "b": b, "c": c}
    counts = emulate(
        cuda(SMALL.replace("PAD", "1"), arch), KernelLaunch("add", (grid,), (block,), [*buffers, np.int32(n)], buffers)
    )
    np.testing.assert_array_equal(c, a + b)
    assert counts["global.a.read_bytes"] == counts["global.c.write_bytes"] == 4 * n


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("n", [5, 256, 10_001])
def test_reduction_with_shuffles_is_correct(arch, n):
    x, out = RNG.standard_normal(n).astype(np.float32), np.zeros(1, np.float32)
    module = cuda(SMALL.replace("PAD", "1"), arch)
    emulate(module, KernelLaunch("sum", (1,), (256,), ["x", "o", np.int32(n)], {"x": x, "o": out}), check_races=True)
    np.testing.assert_allclose(out[0], x.sum(dtype=np.float64), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("rows", "cols"), [(16, 16), (33, 50), (1, 70)])
def test_transpose_through_shared_memory_is_correct(arch, rows, cols):
    x, y = RNG.standard_normal((rows, cols)).astype(np.float32), np.zeros((cols, rows), np.float32)
    grid = (-(-cols // 16), -(-rows // 16))
    waves = {}
    for pad in ("0", "1"):
        y[:] = 0
        module = cuda(SMALL.replace("PAD", pad), arch)
        arguments = ["x", "y", np.int32(rows), np.int32(cols)]
        counts = emulate(
            module, KernelLaunch("transpose", grid, (16, 16), arguments, {"x": x, "y": y}), check_races=True
        )
        np.testing.assert_array_equal(y, x.T)
        waves[pad] = counts["shared.load_wavefronts"] / counts["shared.load_ideal"]
    if rows == cols == 16:
        # 16 lanes read a column of 16 words, which meets in banks 0 and 16, 8 deep. Two columns lie side by side.
        assert waves["0"] == 8
        assert waves["1"] < 3


@pytest.mark.parametrize("arch", ARCHS)
def test_integer_kernels_are_correct(arch):
    module = cuda(SMALL.replace("PAD", "1"), arch)
    x, bins = RNG.integers(0, 256, 3001).astype(np.uint8), np.zeros(64, np.uint32)
    emulate(
        module,
        KernelLaunch("histogram", (1,), (96,), ["x", "b", np.int32(3001)], {"x": x, "b": bins}, shared_bytes=256),
    )
    np.testing.assert_array_equal(bins, np.bincount(x % 64, minlength=64))
    start, steps = np.arange(1, 101, dtype=np.uint32), np.zeros(100, np.uint32)
    emulate(module, KernelLaunch("collatz", (2,), (64,), ["x", "s", np.int32(100)], {"x": start, "s": steps}))

    def collatz(v: int) -> int:
        return 0 if v == 1 else 1 + collatz(3 * v + 1 if v % 2 else v // 2)

    assert steps.tolist() == [collatz(int(v)) for v in start]
    a, b = RNG.integers(-(2**40), 2**40, 50), RNG.integers(1, 2**20, 50) * RNG.choice([-1, 1], 50)
    q, r = np.zeros(50, np.int64), np.zeros(50, np.int32)
    buffers = {"a": a, "b": b, "q": q, "r": r}
    emulate(module, KernelLaunch("divide", (1,), (64,), [*buffers, np.int32(50)], buffers))
    assert q.tolist() == [
        int(abs(m) // abs(d)) * (1 if (m < 0) == (d < 0) else -1) for m, d in zip(a.tolist(), b.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(r, np.fmod(a.astype(np.int32), b.astype(np.int32)))


@pytest.mark.parametrize("arch", ARCHS)
def test_math_library_matches_numpy(arch):
    x, y = np.linspace(0.05, 30, 90).astype(np.float32), np.zeros(90, np.float32)
    emulate(
        cuda(SMALL.replace("PAD", "1"), arch),
        KernelLaunch("functions", (1,), (96,), ["x", "y", np.int32(90)], {"x": x, "y": y}),
    )
    v = x.astype(np.float64)
    pieces = np.stack([np.exp(v), np.sin(v), np.log(v), np.sqrt(v), v / 3, v**1.5])
    i = np.arange(90)
    total = sum(pieces[(j + i) % 6, i] * (j + 1) for j in range(6))
    want = np.select([i % 5 == 0, i % 5 == 1, i % 5 == 2, i % 5 == 3], [total + 1, total * 2, total - 3, -total], total)
    np.testing.assert_allclose(y, want, rtol=2e-6, atol=1e-5)


def test_index_past_the_end_is_detected():
    source = SMALL.replace("PAD", "1").replace("i < n; i += gridDim", "i <= n; i += gridDim")
    a, b, c = np.zeros((3, 64), np.float32)
    with pytest.raises(
        EmulationError,
        match=r"block \(1, 0, 0\) thread \(0, 0, 0\) accesses 4 bytes at offset 256 of [ab], which has 256",
    ):
        emulate(cuda(source), KernelLaunch("add", (2,), (64,), ["a", "b", "c", np.int32(64)], {"a": a, "b": b, "c": c}))
