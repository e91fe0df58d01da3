"""Matrix products of stacks: a bound of tiles in waves, DRAM and L2, and the features that trees correct it by.

A library picks a tile, and how often to split the reduction, by its heuristic; here the best of a few is taken.
"""

from collections.abc import Callable, Mapping

import numpy as np

from kernrec.model.vendor.bound import TILE_CLK, Bound, Card

Array = np.ndarray

DIMS = ("m", "n", "k")
CASES: Mapping[str, Callable[[Mapping[str, int]], bool]] = {
    "product": lambda d: d["batch"] == 1 and not d["bias"] and not d["activation"],
}
"""Whether the dimensions of a problem are of a case."""

_SMALL_TILE = 0.25
"""The rate of a tile is that of 128 x 128, times the ratio of their areas to this power."""
_TILES = np.array([
    (rows, columns, split)
    for rows, columns in ((256, 128), (128, 256), (128, 128), (64, 128), (128, 64), (64, 64), (32, 128), (32, 64),
                          (64, 32), (16, 128), (16, 64))
    for split in (1, 2, 4, 8, 16)
], dtype=float)  # fmt: skip
_LEAST_SPLIT = 256
"""A part of a split reduction has at least this many elements."""
_WAVES = ((256, 128), (128, 256), (128, 128), (64, 128), (128, 64), (64, 64))


def bound(card: Card, sizes: Mapping[str, Array], layout: str) -> Bound:
    """The bound and the features of products; m, n, k."""
    m, n, k = (sizes[name] for name in "mnk")
    gpu = card.gpu
    weights, moved = card.element_bytes * n * k, card.element_bytes * (m * k + n * k + m * n)
    math_s, memory_s = _tiles_s(card, m, n, k), card.memory_s(moved, weights)
    parts = card.parts(2 * m * n * k, moved)
    shares = {"tiles": math_s, "memory": memory_s, "flops": parts["math"], "dram": parts["dram"]}
    columns = {
        "l2.moved": np.log2(moved / gpu.l2_bytes),
        "l2.weights": np.log2(weights / gpu.l2_bytes),
        "l2.result": np.log2(card.element_bytes * m * n / gpu.l2_bytes),
        "waves": np.log2(np.ceil(m / 128) * np.ceil(n / 128) / gpu.sms),
        "log.mn": np.log2(m * n),
    }
    for rows, across in _WAVES:
        tiles = np.ceil(m / rows) * np.ceil(n / across)
        columns[f"waves.{rows}x{across}"] = np.log2(tiles / gpu.sms)
        columns[f"full.{rows}x{across}"] = tiles / (np.ceil(tiles / gpu.sms) * gpu.sms)
    for side in (128, 64):
        columns[f"filled.{side}"] = m * n / (np.ceil(m / side) * np.ceil(n / side) * side * side)
    for name, size, most in (("m", m, 256), ("n", n, 64), ("k", k, 64)):
        columns[f"aligned.{name}"] = np.log2(np.gcd(size.astype(np.int64), most))
    columns |= {"rest.m": m % 128, "rest.n": n % 128}
    columns |= {
        f"layout.{side}": np.full(len(m), float(letter == "t")) for side, letter in zip("ab", layout, strict=True)
    }
    return Bound(card.total(math_s, memory_s), parts, shares, columns)


def _tiles_s(card: Card, m: Array, n: Array, k: Array) -> Array:
    """Time of the tiles in waves over the SMs, with the best tile and split of the reduction."""
    rows, across, split = _TILES.T
    m, n, k = m[:, None], n[:, None], k[:, None]
    sms = card.gpu.sms
    depth = np.ceil(k / split / 32) * 32
    rate = card.flops / sms * np.minimum(1.0, (rows * across / 128**2) ** _SMALL_TILE)
    shared = 2.0 if card.gpu.sm >= 90 else 1.0  # clusters: a tile that is read once goes to two blocks
    read_s = (rows + across) * depth * card.element_bytes / (card.l2 / sms * shared)
    tile_s = np.maximum(2 * rows * across * depth / rate, read_s) + card.seconds(TILE_CLK)
    joined_s = np.where(split == 1, 0.0, 8 * m * n * split / card.l2 + card.seconds(TILE_CLK))
    total = np.ceil(np.ceil(m / rows) * np.ceil(n / across) * split / sms) * tile_s + joined_s
    return np.asarray(np.where((split == 1) | (k >= _LEAST_SPLIT * split), total, np.inf).min(axis=1))
