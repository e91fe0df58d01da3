"""Matrix products of stacks: a bound of tiles in waves, DRAM and L2, and the features that trees correct it by.

A library picks a tile, and how often to split the reduction, by its heuristic; here the best of a few is taken; the
times of others are features. Products outside of tensor cores have tiles of their own.
"""

from collections.abc import Callable, Mapping

import numpy as np

from kernrec.model.vendor.bound import TILE_CLK, Bound, Card
from kernrec.model.vendor.features.simt_products import simt_tiles_s, sustained_s

Array = np.ndarray

DIMS = ("batch", "m", "n", "k")
CASES: Mapping[str, Callable[[Mapping[str, int]], bool]] = {
    "product": lambda d: d["batch"] == 1 and not d["bias"] and not d["activation"],
    "batched": lambda d: not d["bias"] and not d["activation"],
}
"""Whether the dimensions of a problem are of a case."""
PHYSICAL_POWER = True

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
_TIMED = (*((rows, across, 1) for rows, across in _WAVES), (128, 128, 4))
"""Tiles, and parts of the reduction, whose time is a feature."""
_WAVE_ROWS, _WAVE_COLUMNS = np.array(_WAVES, dtype=float).T
_WAVE_NAMES = [f"waves.{rows}x{across}" for rows, across in _WAVES]
_FULL_NAMES = [f"full.{rows}x{across}" for rows, across in _WAVES]
_TIME_NAMES = [f"time.{rows}x{across}x{split}" for rows, across, split in _TIMED]
_SQUARE = [_WAVES.index((side, side)) for side in (128, 64)]
_SQUARE_AREAS = np.array([128.0**2, 64.0**2])
_FILLED_NAMES = ["filled.128", "filled.64"]
_TIMED_PLACES = [_TILES.tolist().index([*map(float, tile)]) for tile in _TIMED]
_ROWS, _COLUMNS, _SPLIT = _TILES.T.copy()
_WHOLE = _SPLIT == 1
_JOINED = np.where(_WHOLE, 0.0, 1.0)
_RATE = np.minimum(1.0, (_ROWS * _COLUMNS / 128**2) ** _SMALL_TILE)
_TILE_FLOPS = 2 * _ROWS * _COLUMNS


def bound(card: Card, sizes: Mapping[str, Array], layout: str) -> Bound:
    """The bound and the features of products."""
    batch, m, n, k = (sizes[name] for name in DIMS)
    gpu, kind = card.gpu, card.precision
    weights, result = kind.b_bytes * batch * n * k, kind.c_bytes * batch * m * n
    moved = (kind.a_bytes + kind.quantising_bytes) * batch * m * k + weights + result
    parts = card.parts(2 * batch * m * n * k, moved)
    memory_s = card.memory_s(moved, weights)
    if card.tensor:
        tiles_s = _tiles_s(card, batch, m, n, k)
        math_s, timed_s = tiles_s.min(axis=1), tiles_s[:, _TIMED_PLACES]
        total_s = card.total(math_s, memory_s)
    else:
        math_s, timed_s = simt_tiles_s(card, batch, m, n, k, layout, _TIMED)
        total_s = parts["launch"] + sustained_s(card, math_s)
    shares = {"tiles": math_s, "memory": memory_s, "flops": parts["math"], "dram": parts["dram"]}
    results = m * n
    logs = {
        "l2.moved": moved / gpu.l2_bytes,
        "l2.weights": weights / gpu.l2_bytes,
        "l2.result": result / gpu.l2_bytes,
        "waves": batch * np.ceil(m / 128) * np.ceil(n / 128) / gpu.sms,
        "log.mn": results,
        "log.mk": m * k,
        "log.nk": n * k,
    }
    tiles = batch[:, None] * np.ceil(m[:, None] / _WAVE_ROWS) * np.ceil(n[:, None] / _WAVE_COLUMNS)
    waves = tiles / gpu.sms
    seconds = np.where(np.isfinite(timed_s), timed_s, math_s[:, None])
    logs |= zip(_WAVE_NAMES, waves.T, strict=True)
    columns = dict(zip(_FULL_NAMES, (tiles / (np.ceil(waves) * gpu.sms)).T, strict=True))
    logs |= zip(_TIME_NAMES, (seconds / total_s[:, None]).T, strict=True)
    filled = results[:, None] / (tiles[:, _SQUARE] / batch[:, None] * _SQUARE_AREAS)
    columns |= zip(_FILLED_NAMES, filled.T, strict=True)
    for name, size, most in (("m", m, 256), ("n", n, 64), ("k", k, 64)):
        logs[f"aligned.{name}"] = np.gcd(size.astype(np.int64), most)
    columns |= {"rest.m": m % 128, "rest.n": n % 128}
    constants = {f"layout.{name}": float(letter == "t") for name, letter in zip("ab", layout, strict=True)}
    constants["arch.datacenter blackwell"] = float(gpu.sm in (100, 103))
    return Bound(total_s, parts, shares, columns, total_s - parts["launch"], logs, constants)


def _tiles_s(card: Card, batch: Array, m: Array, n: Array, k: Array) -> Array:
    """Time of the tiles in waves over the SMs for each tile and split of the reduction, (N, tiles); infinity where the
    parts of a split would be too short."""
    batch, m, n, k = batch[:, None], m[:, None], n[:, None], k[:, None]
    sms, kind = card.gpu.sms, card.precision
    depth = np.ceil(k / _SPLIT / 32) * 32
    rate = card.flops / sms * _RATE
    shared = 2.0 if card.gpu.sm >= 90 else 1.0  # clusters: a tile that is read once goes to two blocks
    read_s = (_ROWS * kind.a_bytes + _COLUMNS * kind.b_bytes) * depth / (card.l2 / sms * shared)
    tile_s = np.maximum(_TILE_FLOPS * depth / rate, read_s) + card.seconds(TILE_CLK)
    joined_s = (8 * batch * m * n * _SPLIT / card.l2 + card.seconds(TILE_CLK)) * _JOINED
    total = np.ceil(batch * np.ceil(m / _ROWS) * np.ceil(n / _COLUMNS) * _SPLIT / sms) * tile_s + joined_s
    return np.asarray(np.where(_WHOLE | (k >= _LEAST_SPLIT * _SPLIT), total, np.inf))
