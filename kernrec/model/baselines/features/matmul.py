"""Lower bound and features of backends' matmuls. The bound includes tiles that run in waves, DRAM and L2. It assumes
the fastest of a few tiles, because libraries select a tile by a heuristic."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernrec.model.baselines.bound import TILE_CLK, Bound, Device
from kernrec.model.baselines.features.simt_products import simt_tiles
from kernrec.util.engine import query

Array = np.ndarray

DIMS = ("batch", "m", "n", "k")
CASES: Mapping[str, Callable[[Mapping[str, int]], bool]] = {
    "aligned": lambda d: d["batch"] == 1 and not d["bias"] and not d["activation"] and not (d["n"] % 16 or d["k"] % 16),
    "product": lambda d: d["batch"] == 1 and not d["bias"] and not d["activation"],
    "batched": lambda d: not d["bias"] and not d["activation"],
}
PHYSICAL_POWER = True
SUSTAINED = True
FEW_ROWS = 16
"""Rows or columns below which a matmul outside of tensor cores runs as a matrix times a few vectors."""

_SMALL_TILE = 0.25
"""Exponent e for small tiles, whose rate is (area / 128**2) ** e times the rate of a 128 x 128 tile."""
_WAVES = ((256, 128), (128, 256), (128, 128), (64, 128), (128, 64), (64, 64))
"""Tiles whose number of waves is a feature."""
_TIMED = (*((rows, across, 1) for rows, across in _WAVES), (128, 128, 4))
"""Tiles whose time is a feature: (rows, columns, number of parts of the reduction)."""
_SIZES = (*_WAVES, (32, 128), (32, 64), (64, 32), (16, 128), (16, 64))
_OTHERS = ((*size, split) for size in _SIZES for split in (1, 2, 4, 8, 16))
_TILES = np.array([*_TIMED, *(tile for tile in _OTHERS if tile not in _TIMED)], dtype=float)
_WAVE_TILES = np.array(_WAVES, dtype=float).T.copy()
_NAMES = (
    *(f"share.{name}" for name in ("tiles", "memory", "flops", "dram")), *(f"log.{name}" for name in DIMS), "log.total",
    "l2.moved", "l2.weights", "l2.result", "waves", "log.mn", "log.mk", "log.nk",
    *(f"waves.{rows}x{across}" for rows, across in _WAVES),
    *(f"time.{rows}x{across}x{split}" for rows, across, split in _TIMED),
    "aligned.m", "aligned.n", "aligned.k", "aligned.rows of a", "aligned.rows of b", "aligned.rows",
    *(f"full.{rows}x{across}" for rows, across in _WAVES),
    "filled.128", "filled.64", "rest.m", "rest.n",
)  # fmt: skip
"""Names of the rows that the engine fills, in the order of `Figure` in engine/query/products.cpp."""
assert (len(_NAMES), len(_WAVES), len(_TIMED)) == (query.PRODUCT_FIGURES, query.WAVE_TILES, query.TIMED_TILES)


def is_matvec(sizes: Mapping[str, int]) -> bool:
    """Return whether a matmul has so few rows or columns that it runs as a matrix times a few vectors."""
    return sizes["batch"] == 1 and min(sizes["m"], sizes["n"]) < FEW_ROWS


def bound(device: Device, sizes: Array, layout: str) -> Bound:
    return Bound.of(products(device, layout).bound(sizes))


def products(device: Device, layout: str) -> Any:
    """Return the engine object that computes bounds and features."""
    if (cached := device.products.get(layout)) is None:
        cached = device.products[layout] = _prepared(device, layout)
    return cached


def _prepared(device: Device, layout: str) -> Any:
    gpu, kind = device.gpu, device.precision
    figures = [
        kind.a_bytes + kind.quantising_bytes, kind.b_bytes, kind.c_bytes, device.peak_flops, gpu.memory_bandwidth,
        device.dram, device.l2, gpu.l2_bytes, gpu.sms, device.launch_s, device.timing.working_sets,
        float(layout[0] == "t"), float(layout[1] == "t"),
    ]  # fmt: skip
    transposed = {f"layout.{name}": float(letter == "t") for name, letter in zip("ab", layout, strict=True)}
    architecture = {"arch.datacenter blackwell": float(gpu.sm in (100, 103)), "device.sm": float(gpu.sm)}
    if device.tensor:
        # From sm_90 on, two blocks of a cluster share each read of a tile, so tiles arrive twice as fast.
        read_rate = device.l2 / gpu.sms * (2.0 if gpu.sm >= 90 else 1.0)
        tiles, more = _tiles(device), [device.seconds(TILE_CLK), read_rate]
    else:
        tiles, more = simt_tiles(device, layout, _TIMED)
    constants = transposed | architecture | device.constants
    return query.Products([*figures, *more], tiles, _WAVE_TILES, _NAMES, constants)


def _tiles(device: Device) -> Array:
    rows, across, split = _TILES.T
    rate = device.flops / device.gpu.sms * np.minimum(1.0, (rows * across / 128**2) ** _SMALL_TILE)
    read_bytes = rows * device.precision.a_bytes + across * device.precision.b_bytes
    return np.array([rows, across, split, rate, read_bytes, 2 * rows * across, split != 1])
