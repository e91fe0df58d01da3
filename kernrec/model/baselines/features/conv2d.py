"""Lower bound and features of cuDNN's 3x3 convolutions in f32.

cuDNN selects the algorithm by unpublished heuristics. So the times of four algorithms are estimated: implicit GEMM,
Winograd's F(2x2, 3x3) and F(4x4, 3x3), and FFT. The shortest time is the bound, and all four times are features. F(2x2,
3x3) runs as one kernel. F(4x4, 3x3) transforms images and filters, runs 36 batched matmuls and transforms the results
back. Each step writes its results to memory (Lavin and Gray 2016, arXiv 1509.09308).
"""

from collections.abc import Callable, Mapping

import numpy as np

from kernrec.model.baselines.bound import Bound, Device, bound_of

Array = np.ndarray

DIMS = ("n", "c", "h", "w", "k")
CASES: Mapping[str, Callable[[Mapping[str, int]], bool]] = {
    "3x3": lambda d: d["r"] == d["s"] == 3 and d["stride"] == d["dilation"] == d["groups"] == d["padding"] == 1
}

CALL_S = 20e-6
"""Seconds that the host and the launches add to a call."""
_FEWEST = 4.0
"""Factor by which F(4x4, 3x3) reduces the number of multiplications. No algorithm of cuDNN reduces it by much more."""
_TILES = ((128, 128), (128, 64), (128, 32), (64, 64), (32, 32))
_TILE_CLK = 3000.0
_MATH_SHARE, _FUSED_SHARE, _FFT_SHARE, _DRAM_SHARE = 0.85, 0.75, 0.6, 0.8
_EXTRA_S = {"gemm": 3e-6, "winograd 2x2": 5e-6, "winograd 4x4": 15e-6, "fft": 20e-6}
"""Seconds that the additional launches of each algorithm take."""
_FFT_SIZES = np.array([[16.0], [32.0]])
_ROWS, _ACROSS = (np.array(side, dtype=float)[:, None] for side in zip(*_TILES, strict=True))
_PRODUCT_TILES = 4
"""Number of tile sizes from `_TILES` that a matmul can use. The model assumes the fastest of these tiles."""
_RATES = np.array([(rows * across / 128**2) ** 0.2 for rows, across in _TILES[:_PRODUCT_TILES]])[:, None]
_BATCHES = np.array([1.0, 36.0])[:, None, None]
"""Number of matmuls in an implicit GEMM and in Winograd's F(4x4, 3x3)."""
_LOGS = (
    "l2.moved", "aligned.c", "aligned.k", "shape.c", "shape.k", "shape.n", "shape.pixels", "waves.transformed",
)  # fmt: skip
_WAVES, _FULL = (
    tuple(f"{what}.{name} {rows}x{across}" for name in ("gemm", "winograd") for rows, across in _TILES)
    for what in ("waves", "full")
)
_COLUMNS = (
    "shape.algorithm", "l2.moved", "aligned.c", "aligned.k", "shape.h", "shape.c", "shape.k", "shape.n", "shape.pixels",
    "shape.rest of 4", "shape.rest of 2", "shape.rest of k", "shape.rest of 32", "shape.rest of tiles",
    "waves.transformed", "arch.balance", "arch.watts",
    *(f"{what}.{name} {rows}x{across}" for rows, across in _TILES for name in ("gemm", "winograd")
      for what in ("waves", "full")),
)  # fmt: skip
"""Names of the features, in the order in which the trees number them. The order decides between equally good splits."""


def bound(device: Device, sizes: Array, layout: str) -> Bound:
    """Return the lower bound and the features of N convolutions. `sizes` has the shape (D, N)."""
    n, c, h, w, k = sizes
    gpu, count = device.gpu, len(n)
    pixels, images, filters, results = n * h * w, 4 * n * c * h * w, 4 * k * c * 9, 4 * n * k * h * w
    tiles = {side: n * np.ceil(h / side) * np.ceil(w / side) for side in (2, 4)}
    bandwidth = gpu.memory_bandwidth * _DRAM_SHARE
    flops, moved = 2 * pixels * k * c * 9, images + filters + results
    fused_math_s = 32 * tiles[2] * np.ceil(k / 32) * 32 * c / (device.peak_flops * _FUSED_SHARE)
    inner = 4 * 36 * (c * tiles[4] + k * tiles[4] + k * c)
    wide = np.array([pixels, tiles[4]])[:, None]
    gemm_s, winograd_s = _products_s(device, wide, k, np.array([9 * c, c])[:, None])
    fft_s = _fft_s(device, n, c, h, w, k).min(axis=0)
    algorithms = {
        "gemm": gemm_s,
        "winograd 2x2": np.maximum(fused_math_s, (2 * images + results) / bandwidth) + 4 * filters / bandwidth,
        "winograd 4x4": winograd_s + (moved + 1.7 * inner) / bandwidth,
        "fft": fft_s + moved / bandwidth,
    }
    algorithms = {name: seconds + _EXTRA_S[name] for name, seconds in algorithms.items()}
    every_s = np.array([*algorithms.values()])
    work_s = every_s.min(axis=0)
    total_s = CALL_S + work_s
    parts = device.parts(flops / _FEWEST, moved) | {"launch": np.full(count, CALL_S)}
    shares = {
        **algorithms, "launch": parts["launch"], "flops": flops / device.peak_flops, "dram": parts["dram"],
        "transforms": inner / bandwidth, "filters": filters / bandwidth, "images": images / bandwidth,
        "results": results / bandwidth,
    }  # fmt: skip
    aligned = np.gcd(np.array([c, k], dtype=np.int64), 64)
    figures = np.array([moved / gpu.l2_bytes, *aligned, c, k, n, pixels, tiles[4] / 128 / gpu.sms])
    launched = np.ceil(wide / _ROWS) * np.ceil(k / _ACROSS) * _BATCHES
    waves = launched / gpu.sms
    logs = dict(zip((*_LOGS, *_WAVES), np.log2(np.concatenate([figures, waves.reshape(-1, count)])), strict=True))
    full = dict(zip(_FULL, (launched / (np.ceil(waves) * gpu.sms)).reshape(-1, count), strict=True))
    rests = {
        "shape.rest of 4": h % 4, "shape.rest of 2": h % 2, "shape.rest of k": k % 128, "shape.rest of 32": k % 32,
        "shape.rest of tiles": tiles[4] % 128,
    }  # fmt: skip
    of_card = {
        "arch.balance": np.full(count, np.log2(device.peak_flops / gpu.memory_bandwidth)),
        "arch.watts": np.full(count, np.log2(gpu.tdp_w / device.peak_flops * 1e12)),
    }
    every = logs | full | rests | of_card | {"shape.algorithm": every_s.argmin(axis=0).astype(float), "shape.h": h}
    columns = {name: every[name] for name in _COLUMNS}
    return bound_of(device, DIMS, sizes, total_s, parts, shares, columns, work_s)


def _products_s(device: Device, m: Array, n: Array, k: Array) -> Array:
    """Return the seconds of matmuls with the best tile, for implicit GEMM (row 0) and Winograd's F(4x4, 3x3) (row 1).
    `m` and `k` have the shape (2, 1, N), and `n` the shape (N,)."""
    rows, across = _ROWS[:_PRODUCT_TILES], _ACROSS[:_PRODUCT_TILES]
    rate = device.peak_flops / device.gpu.sms * _MATH_SHARE * _RATES
    tile_s = 2 * rows * across * np.ceil(k / 16) * 16 / rate + device.seconds(_TILE_CLK)
    waves = np.ceil(np.ceil(m / rows) * np.ceil(n / across) * _BATCHES / device.gpu.sms)
    return np.asarray((waves * tile_s).min(axis=1))


def _fft_s(device: Device, n: Array, c: Array, h: Array, w: Array, k: Array) -> Array:
    """Return the seconds of the FFT algorithm for tiles of 16 x 16 and of 32 x 32, (2, N)."""
    side = _FFT_SIZES
    tiles = n * np.ceil(h / (side - 2)) * np.ceil(w / (side - 2))
    frequencies = side * (side / 2 + 1)
    moved = 16 * frequencies * (c * tiles + k * tiles + k * c)
    math_s = 8 * frequencies * tiles * k * c / (device.peak_flops * _FFT_SHARE)
    return np.asarray(math_s + moved / (device.gpu.memory_bandwidth * _DRAM_SHARE))
