"""Matrix products of stacks: a bound of tiles in waves, DRAM and L2, and the features that trees correct it by.

A library picks a tile, and how often to split the reduction, by its heuristic; here the best of a few is taken; the
times of others are features. Products outside of tensor cores have tiles of their own.
"""

from collections.abc import Callable, Mapping

import numpy as np

from kernrec.model.vendor.bound import TILE_CLK, Bound, Card
from kernrec.model.vendor.core import (
    ALIGNED,
    DRAM_S,
    FIGURES,
    FLOPS_S,
    FULL,
    L2_S,
    MEMORY_S,
    TILES_S,
    TIMED,
    WAVES,
    WORK,
)
from kernrec.model.vendor.features.simt_products import simt_seconds, sustained_s
from kernrec.util.compiled import core

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
_WAVES = ((256, 128), (128, 256), (128, 128), (64, 128), (128, 64), (64, 64))
"""Tiles whose waves are features; those of 128 x 128 and 64 x 64 are told by how full they are, too."""
_TIMED = (*((rows, across, 1) for rows, across in _WAVES), (128, 128, 4))
"""Tiles, and parts of the reduction, whose time is a feature."""
_SIZES = (*_WAVES, (32, 128), (32, 64), (64, 32), (16, 128), (16, 64))
_OTHERS = ((*size, split) for size in _SIZES for split in (1, 2, 4, 8, 16))
_TILES = np.array([*_TIMED, *(tile for tile in _OTHERS if tile not in _TIMED)], dtype=float)
_WAVE_TILES = np.array(_WAVES, dtype=float).T.copy()
_MOST_ALIGNED = np.array([[256], [64], [64]])
"""Of m, n and k, the largest power of two that counts."""
_NAMES = (
    *(f"share.{name}" for name in ("tiles", "memory", "flops", "dram")), *(f"log.{name}" for name in DIMS), "log.total",
    "l2.moved", "l2.weights", "l2.result", "waves", "log.mn", "log.mk", "log.nk",
    *(f"waves.{rows}x{across}" for rows, across in _WAVES),
    *(f"time.{rows}x{across}x{split}" for rows, across, split in _TIMED),
    "aligned.m", "aligned.n", "aligned.k", *(f"full.{rows}x{across}" for rows, across in _WAVES),
    "filled.128", "filled.64", "rest.m", "rest.n",
)  # fmt: skip
"""Of the rows of `core.figures_of_products`."""
assert (len(_NAMES), len(_WAVES), len(_TIMED)) == (FIGURES, WAVES, TIMED)


def bound(card: Card, sizes: Array, layout: str) -> Bound:
    """The bound and the features of products."""
    form, gpu, kind = core("kernrec.model.vendor"), card.gpu, card.precision
    count = sizes.shape[1]
    work, figures = np.empty((WORK, count)), np.empty((FIGURES, count))
    of_sizes, of_work = form.rows(sizes), form.rows(work)
    form.functions.work_of_products(
        of_sizes, kind.a_bytes + kind.quantising_bytes, kind.b_bytes, kind.c_bytes, card.peak_flops,
        gpu.memory_bandwidth, card.dram, card.l2, gpu.l2_bytes, card.timing.working_sets, of_work,
    )  # fmt: skip
    if card.tensor:
        tiles = _tiles(card)
        seconds = np.empty((count, tiles.shape[1]))
        read_rate = card.l2 / gpu.sms * (2.0 if gpu.sm >= 90 else 1.0)  # clusters: a tile read once goes to two blocks
        form.functions.tensor_tiles(
            of_sizes, form.rows(tiles), tiles.shape[1], gpu.sms, read_rate, card.seconds(TILE_CLK), card.l2,
            form.table(seconds), of_work,
        )  # fmt: skip
        math_4, memory_4 = work[TILES_S] ** 4, work[MEMORY_S] ** 4  # they overlap
        total_s = card.launch_s + (math_4 + memory_4) ** 0.25
    else:
        seconds = simt_seconds(card, sizes, layout, _TIMED, work)
        total_s = card.launch_s + sustained_s(card, work[TILES_S])
    form.functions.figures_of_products(
        of_sizes, of_work, form.rows(seconds[:, :TIMED].T), form.rows(total_s), _WAVE_TILES, gpu.sms, gpu.l2_bytes,
        form.rows(figures),
    )  # fmt: skip
    figures[ALIGNED:FULL] = np.gcd(sizes[1:].astype(np.int64), _MOST_ALIGNED)
    np.log2(figures[:FULL], out=figures[:FULL])
    constants = card.once(layout, lambda card: _constants(card, layout))
    parts = {"math": work[FLOPS_S], "dram": work[DRAM_S], "l2": work[L2_S], "launch": np.full(count, card.launch_s)}
    return Bound(total_s, parts, _NAMES, figures, constants, total_s - card.launch_s)


def _tiles(card: Card) -> Array:
    """The tiles and parts of the reduction on a card: the rows of `core.tensor_tiles`, those that are timed first."""
    tiles: Array = card.once("tiles", _new_tiles)
    return tiles


def _new_tiles(card: Card) -> Array:
    rows, across, split = _TILES.T
    rate = card.flops / card.gpu.sms * np.minimum(1.0, (rows * across / 128**2) ** _SMALL_TILE)
    read_bytes = rows * card.precision.a_bytes + across * card.precision.b_bytes
    return np.array([rows, across, split, rate, read_bytes, 2 * rows * across, split != 1])


def _constants(card: Card, layout: str) -> Mapping[str, float]:
    """The features that all products of a data type and layout have in common on a card."""
    transposed = {f"layout.{name}": float(letter == "t") for name, letter in zip("ab", layout, strict=True)}
    return transposed | {"arch.datacenter blackwell": float(card.gpu.sm in (100, 103))} | card.constants
