"""Matrix products outside of tensor cores, as cuBLAS runs them: tiles of its kernels, DRAM, L2 and the clock held.

cuBLAS has a few tiles for each generation, others for batched products than for single ones; the names of its kernels,
such as `maxwell_sgemm_128x64_nn`, tell which in NeuSight's recordings of five cards. Here the best of these tiles is
the bound. Constants were fitted to those recordings, of all five cards together.
"""

from collections.abc import Mapping
from functools import cache

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.vendor.bound import Card

Array = np.ndarray

_SPLITS = (1, 2, 4, 8, 16)
_LEAST_SPLIT = 256
"""A part of a split reduction has at least this many elements."""
_SINGLE: Mapping[str, tuple[tuple[int, int], ...]] = {
    "pascal": ((128, 32), (64, 64), (32, 128)),
    "volta": ((128, 128), (64, 128), (64, 64), (128, 32), (32, 128), (32, 64), (32, 32)),
    "ampere": ((64, 128), (32, 128), (128, 32), (32, 64), (32, 32)),
    "later": ((128, 128), (64, 128), (32, 128), (128, 32), (32, 64), (32, 32)),
}
"""Tiles of single products, by the generation of the kernels; the reduction may be split. Of cards later than the A100
none was recorded with its kernels: they are taken to run the A100's, of the largest tile, too."""
_BATCHED: Mapping[str, tuple[tuple[int, int], ...]] = {
    "pascal": ((64, 128),),
    "volta": ((64, 128), (64, 64), (128, 32), (32, 128)),
    "ampere": ((128, 128),),
    "later": ((128, 128),),
}
"""Tiles of batched products."""
_SHARE, _SMALL_TILE = 0.935, 0.07
"""Share of the FMA pipes' rate that a tile of 128 x 128 reaches; smaller ones have it times the ratio of areas to the
second power."""
_WARPS, _FEW_WARPS = 16.0, 0.3
"""Fewer warps on an SM reach the rate times their share to the second power."""
_TILE_CLK = 3200.0
"""Clocks to fill a tile's pipeline and to write its results."""
_DRAM_SHARE, _REREAD = 0.8, 0.5
"""Share of the data sheet's bandwidth; share of operands beyond L2 that every tile reads anew."""
_STRIDED, _STRIDED_K, _STRIDED_POWER = 1.86, 1860.0, 0.54
"""On Pascal rows of the second operand that are k apart cost more of DRAM's time: this, and as much again where k is
this many elements for a MiB of L2, to the power."""
_OVERLAP = 3.4
_PICOJOULES = {60: 6.8, 61: 5.0, 70: 7.4, 75: 13.86, 80: 3.8, 86: 8.7, 89: 5.0, 90: 6.6, 100: 6.6, 103: 6.6}
"""Energy of the core's events for a FLOP of a product, by compute capability, others as 89: that of the FMA by the
model of power of November 2026, times 1.27 (`power_base.BESIDE_ARITHMETIC`). The T4's is twice that: with it, held back
by its 70 W, it takes the times that were recorded; the A100's is the least, for its products at 250 W show no limit.
They stay as the trees were trained with them."""
_CORE_SHARE = 0.8
"""Share of the power limit that is left for these events: leakage of small cards, by which the model of power would say
it, is not pinned down by any recording."""
_THERMAL_S, _THERMAL_POWER = 300e-6, 1.4
"""Calls that are timed alone reach the sustained clock only where they are long beside the pause between two."""


def simt_tiles_s(
    card: Card, batch: Array, m: Array, n: Array, k: Array, layout: str, timed: tuple[tuple[int, int, int], ...]
) -> tuple[Array, Array]:
    """(seconds of the library's best tile (N,), those of the tiles and splits in `timed`, (N, T); infinity where the
    parts of a split would be too short)."""
    tiles, single, batched = _tiles(_family(card.gpu), timed)
    seconds = _tiles_s(card, tiles, batch[:, None], m[:, None], n[:, None], k[:, None], layout)
    best = np.where(batch > 1, seconds[:, batched].min(axis=1), seconds[:, single].min(axis=1))
    return best, seconds[:, : len(timed)]


@cache
def _tiles(family: str, timed: tuple[tuple[int, int, int], ...]) -> tuple[Array, Array, Array]:
    """(rows, columns and splits of all tiles (3, T), which of them are for single products, which for batched ones);
    those in `timed` are the first."""
    single = [(*tile, split) for tile in _SINGLE[family] for split in _SPLITS]
    batched = [(*tile, 1) for tile in _BATCHED[family]]
    every = [*timed, *single, *batched]
    places = np.arange(len(every))
    first, second = len(timed), len(timed) + len(single)
    return np.array(every, dtype=float).T, places[first:second], places[second:]


def sustained_s(card: Card, seconds: Array) -> Array:
    """Times at the boost clock, (N,), at the clock that the power limit leaves."""
    held = (seconds / (seconds + _THERMAL_S)) ** _THERMAL_POWER if card.timing.alone else 1.0
    return np.asarray(seconds * (1.0 + held * (1.0 / _sustained_share(card.gpu) - 1.0)))


def _sustained_share(gpu: GPU) -> float:
    """The clock that a large product holds, over the boost clock."""
    drawn_w = 1e-12 * _PICOJOULES.get(gpu.sm, _PICOJOULES[89]) * gpu.peak_flops("f32")
    return min(1.0, _CORE_SHARE * gpu.tdp_w / drawn_w)


def _family(gpu: GPU) -> str:
    """The generation whose kernels cuBLAS runs on a card."""
    if gpu.sm < 70:
        return "pascal"
    if gpu.sm < 80:
        return "volta"
    return "ampere" if gpu.sm == 80 else "later"


def _tiles_s(card: Card, tiles: Array, batch: Array, m: Array, n: Array, k: Array, layout: str) -> Array:
    """Seconds of products (N, 1) in each of the tiles and splits (3, T), at the boost clock, (N, T); infinity where the
    parts of a split would be too short."""
    gpu, element, (rows, across, split) = card.gpu, card.element_bytes, tiles
    warps = rows * across / 2048
    launched = batch * np.ceil(m / rows) * np.ceil(n / across) * split
    depth = np.ceil(k / split / 8) * 8
    per_sm = np.ceil(launched / gpu.sms)
    resident = np.clip(np.floor(_WARPS / warps), 1, per_sm)
    share = _SHARE * (rows * across / 128**2) ** _SMALL_TILE * np.minimum(1, resident * warps / _WARPS) ** _FEW_WARPS
    math_s = per_sm * 2 * rows * across * depth * gpu.sms / (card.peak_flops * share)
    math_s = math_s + np.ceil(per_sm / resident) * card.seconds(_TILE_CLK)
    operands = element * batch * (m * k + n * k)
    once = operands + element * batch * m * n
    read = launched * (rows + across) * element * depth
    # What is in use of the operands at one time, so that L2 holds less of them.
    in_use = gpu.sms * resident * (rows + across) * element * 64**2
    again = np.clip(operands / gpu.l2_bytes - 1, 0, 1) * (1 - np.minimum(gpu.l2_bytes / in_use, 1))
    if _family(gpu) == "later":  # tens of MiB hold the operands of the tiles that run at one time
        again = np.zeros_like(again)
    moved = once + np.maximum(read - once, 0) * _REREAD * again
    dram_s = moved / (gpu.memory_bandwidth * _DRAM_SHARE)
    if _family(gpu) == "pascal" and layout[1] == "t":
        dram_s = dram_s * (_STRIDED + (k / (_STRIDED_K * gpu.l2_bytes / 2**20)) ** _STRIDED_POWER)
    memory_s = np.maximum(dram_s, read / card.l2)
    seconds = (math_s**_OVERLAP + memory_s**_OVERLAP) ** (1 / _OVERLAP)
    joined_s = 8 * batch * m * n * split / card.l2 + card.seconds(_TILE_CLK)
    return np.where(split == 1, seconds, np.where(k >= _LEAST_SPLIT * split, seconds + joined_s, np.inf))
