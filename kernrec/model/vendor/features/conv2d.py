"""3x3 convolutions of cuDNN in f32: the best of implicit GEMM, two kinds of Winograd and FFT, and features.

cuDNN picks the algorithm by heuristics that are not published; here each has a time, the best is the bound, and the
others are features. Winograd's F(2x2, 3x3) is one kernel; F(4x4, 3x3) transforms images and filters, multiplies 36
batches and transforms back, through memory (Lavin and Gray 2016, arXiv 1509.09308).
"""

from collections.abc import Callable, Mapping

import numpy as np

from kernrec.model.vendor.bound import Bound, Card, bound_of

Array = np.ndarray

DIMS = ("n", "c", "h", "w", "k")
CASES: Mapping[str, Callable[[Mapping[str, int]], bool]] = {
    "3x3": lambda d: d["r"] == d["s"] == 3 and d["stride"] == d["dilation"] == d["groups"] == d["padding"] == 1,
}
"""Whether the dimensions of a problem are of a case."""

RECORDED = {"3x3": "3x3 filters with stride, padding and dilation of 1 and one group"}
"""The cases in words."""
CALL_S = 20e-6
"""Seconds of one timed call that the host and launches take."""
_FEWEST = 4.0
"""F(4x4, 3x3) has a fourth of the multiplications of the definition: no algorithm of cuDNN has far fewer."""
_TILES = ((128, 128), (128, 64), (128, 32), (64, 64), (32, 32))
_TILE_CLK = 3000.0
_MATH_SHARE, _FUSED_SHARE, _FFT_SHARE, _DRAM_SHARE = 0.85, 0.75, 0.6, 0.8
_EXTRA_S = {"gemm": 3e-6, "winograd 2x2": 5e-6, "winograd 4x4": 15e-6, "fft": 20e-6}
"""Seconds of further launches of an algorithm."""
_FFT_SIZES = (16, 32)


def bound(card: Card, sizes: Array, layout: str) -> Bound:
    """The bound and the features of 3x3 convolutions with stride and padding 1."""
    n, c, h, w, k = sizes
    gpu, count = card.gpu, len(n)
    pixels, images, filters, results = n * h * w, 4 * n * c * h * w, 4 * k * c * 9, 4 * n * k * h * w
    tiles = {side: n * np.ceil(h / side) * np.ceil(w / side) for side in (2, 4)}
    bandwidth = gpu.memory_bandwidth * _DRAM_SHARE
    flops, moved = 2 * pixels * k * c * 9, images + filters + results
    single = np.ones(count)
    fused_math_s = 32 * tiles[2] * np.ceil(k / 32) * 32 * c / (card.peak_flops * _FUSED_SHARE)
    inner = 4 * 36 * (c * tiles[4] + k * tiles[4] + k * c)
    algorithms = {
        "gemm": _product_s(card, pixels, k, 9 * c, single),
        "winograd 2x2": np.maximum(fused_math_s, (2 * images + results) / bandwidth) + 4 * filters / bandwidth,
        "winograd 4x4": _product_s(card, tiles[4], k, c, 36 * single) + (moved + 1.7 * inner) / bandwidth,
        "fft": np.min([_fft_s(card, side, n, c, h, w, k) for side in _FFT_SIZES], axis=0) + moved / bandwidth,
    }
    algorithms = {name: seconds + _EXTRA_S[name] for name, seconds in algorithms.items()}
    work_s = np.min(list(algorithms.values()), axis=0)
    total_s = CALL_S + work_s
    parts = card.parts(flops / _FEWEST, moved) | {"launch": np.full(count, CALL_S)}
    shares = {
        **algorithms, "launch": parts["launch"], "flops": flops / card.peak_flops, "dram": parts["dram"],
        "transforms": inner / bandwidth, "filters": filters / bandwidth, "images": images / bandwidth,
        "results": results / bandwidth,
    }  # fmt: skip
    columns = {
        "shape.algorithm": np.argmin(list(algorithms.values()), axis=0).astype(float),
        "l2.moved": np.log2(moved / gpu.l2_bytes),
        "aligned.c": np.log2(np.gcd(c.astype(np.int64), 64)), "aligned.k": np.log2(np.gcd(k.astype(np.int64), 64)),
        "shape.h": h, "shape.c": np.log2(c), "shape.k": np.log2(k), "shape.n": np.log2(n),
        "shape.pixels": np.log2(pixels), "shape.rest of 4": h % 4, "shape.rest of 2": h % 2,
        "shape.rest of k": k % 128, "shape.rest of 32": k % 32, "shape.rest of tiles": tiles[4] % 128,
        "waves.transformed": np.log2(tiles[4] / 128 / gpu.sms),
        "arch.balance": np.full(count, np.log2(card.peak_flops / gpu.memory_bandwidth)),
        "arch.watts": np.full(count, np.log2(gpu.tdp_w / card.peak_flops * 1e12)),
    }  # fmt: skip
    for rows, across in _TILES:
        for name, wide, batch in (("gemm", pixels, 1), ("winograd", tiles[4], 36)):
            launched = np.ceil(wide / rows) * np.ceil(k / across) * batch
            columns[f"waves.{name} {rows}x{across}"] = np.log2(launched / gpu.sms)
            columns[f"full.{name} {rows}x{across}"] = launched / (np.ceil(launched / gpu.sms) * gpu.sms)
    return bound_of(card, DIMS, sizes, total_s, parts, shares, columns, work_s)


def _product_s(card: Card, m: Array, n: Array, k: Array, batch: Array) -> Array:
    """Seconds of batches of products in waves of tiles, the best tile of four."""
    seconds = []
    for rows, across in _TILES[:4]:
        rate = card.peak_flops / card.gpu.sms * _MATH_SHARE * (rows * across / 128**2) ** 0.2
        tile_s = 2 * rows * across * np.ceil(k / 16) * 16 / rate + card.seconds(_TILE_CLK)
        seconds.append(np.ceil(np.ceil(m / rows) * np.ceil(n / across) * batch / card.gpu.sms) * tile_s)
    return np.asarray(np.min(seconds, axis=0))


def _fft_s(card: Card, side: int, n: Array, c: Array, h: Array, w: Array, k: Array) -> Array:
    """Seconds of products and transforms in tiles of `side` x `side` elements."""
    tiles = n * np.ceil(h / (side - 2)) * np.ceil(w / (side - 2))
    frequencies = side * (side / 2 + 1)
    moved = 16 * frequencies * (c * tiles + k * tiles + k * c)
    math_s = 8 * frequencies * tiles * k * c / (card.peak_flops * _FFT_SHARE)
    return np.asarray(math_s + moved / (card.gpu.memory_bandwidth * _DRAM_SHARE))
