"""Lower bound of backends' matmuls, and the features with which trees correct it.

The bound includes tiles that run in waves, DRAM and L2. A library selects a tile and splits the reduction by a
heuristic. Here, the best of a few tiles determines the bound, and the times of other tiles are features. Matmuls
outside of tensor cores have other tiles (`simt_products`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernrec.model.baselines.bound import PARTS, TILE_CLK, Bound, Device
from kernrec.model.baselines.features.simt_products import set_simt_tiles
from kernrec.util.engine import query

Array = np.ndarray

DIMS = ("batch", "m", "n", "k")
CASES: Mapping[str, Callable[[Mapping[str, int]], bool]] = {
    "aligned": lambda d: d["batch"] == 1 and not d["bias"] and not d["activation"] and not (d["n"] % 16 or d["k"] % 16),
    "product": lambda d: d["batch"] == 1 and not d["bias"] and not d["activation"],
    "batched": lambda d: not d["bias"] and not d["activation"],
}
"""For each case that a recorded set can cover: a predicate that decides from a problem's dimensions whether the problem
belongs to the case."""
PHYSICAL_POWER = True
SUSTAINED = True
FEW_ROWS = 16
"""Matmuls with fewer rows or columns run as a matrix times a few vectors, if they run outside of tensor cores."""

_SMALL_TILE = 0.25
"""Exponent of a tile's relative area: a tile that is smaller than 128 x 128 reaches the rate of a 128 x 128 tile times
(area / 128**2) to this power."""
_WAVES = ((256, 128), (128, 256), (128, 128), (64, 128), (128, 64), (64, 64))
"""Tiles whose number of waves is a feature. For 128 x 128 and 64 x 64, another feature is how full the waves are."""
_TIMED = (*((rows, across, 1) for rows, across in _WAVES), (128, 128, 4))
"""Tiles whose time is a feature, as (rows, columns, number of parts into which the reduction is split)."""
_SIZES = (*_WAVES, (32, 128), (32, 64), (64, 32), (16, 128), (16, 64))
_OTHERS = ((*size, split) for size in _SIZES for split in (1, 2, 4, 8, 16))
_TILES = np.array([*_TIMED, *(tile for tile in _OTHERS if tile not in _TIMED)], dtype=float)
_WAVE_TILES = np.array(_WAVES, dtype=float).T.copy()
_NAMES = (
    *(f"share.{name}" for name in ("tiles", "memory", "flops", "dram")), *(f"log.{name}" for name in DIMS), "log.total",
    "l2.moved", "l2.weights", "l2.result", "waves", "log.mn", "log.mk", "log.nk",
    *(f"waves.{rows}x{across}" for rows, across in _WAVES),
    *(f"time.{rows}x{across}x{split}" for rows, across, split in _TIMED),
    "aligned.m", "aligned.n", "aligned.k", *(f"full.{rows}x{across}" for rows, across in _WAVES),
    "filled.128", "filled.64", "rest.m", "rest.n",
)  # fmt: skip
"""Names of the rows that the engine fills, in the order of `Figure` in engine/query/products.cpp."""
_ROWS: Mapping[str, int] = query.PRODUCT_ROWS
assert (len(_NAMES), len(_WAVES), len(_TIMED)) == (_ROWS["figures"], query.WAVE_TILES, query.TIMED_TILES)


def is_matvec(sizes: Mapping[str, int]) -> bool:
    """Return whether a matmul runs as a matrix times a few vectors, if it runs outside of tensor cores."""
    return sizes["batch"] == 1 and min(sizes["m"], sizes["n"]) < FEW_ROWS


def bound(device: Device, sizes: Array, layout: str) -> Bound:
    """Return the lower bound and the features of matmuls with sizes (D, N)."""
    products, constants = device.once(("products", layout), lambda device: _prepared(device, layout))
    count = sizes.shape[1]
    work, figures = np.empty((_ROWS["work"], count)), np.empty((_ROWS["figures"], count))
    products.fill(sizes, work, figures)
    parts, log_sizes = dict(zip(PARTS, work, strict=False)), figures[_ROWS["first_size"] : _ROWS["total"]]
    return Bound(work[_ROWS["total_s"]], parts, _NAMES, figures, constants, log_sizes, work[_ROWS["work_s"]])


def _prepared(device: Device, layout: str) -> tuple[Any, Mapping[str, float]]:
    """Return (products, constants). `products` is an engine object that computes the bounds and features of matmuls
    with this layout on the GPU. `constants` contains the features that are equal for all these matmuls, keyed by name.
    """
    gpu, kind = device.gpu, device.precision
    figures = [
        kind.a_bytes + kind.quantising_bytes, kind.b_bytes, kind.c_bytes, device.peak_flops, gpu.memory_bandwidth,
        device.dram, device.l2, gpu.l2_bytes, gpu.sms, device.launch_s, device.timing.working_sets,
    ]  # fmt: skip
    products = query.Products(figures, _WAVE_TILES)
    if device.tensor:
        # In a cluster, two blocks share one read of a tile.
        read_rate = device.l2 / gpu.sms * (2.0 if gpu.sm >= 90 else 1.0)
        products.set_tensor_tiles(_tiles(device), read_rate, device.seconds(TILE_CLK))
    else:
        set_simt_tiles(products, device, layout, _TIMED)
    return products, _constants(device, layout)


def _tiles(device: Device) -> Array:
    """Return the figures of the tensor cores' tiles, (7, number of tiles). Tiles whose time is a feature come first."""
    rows, across, split = _TILES.T
    rate = device.flops / device.gpu.sms * np.minimum(1.0, (rows * across / 128**2) ** _SMALL_TILE)
    read_bytes = rows * device.precision.a_bytes + across * device.precision.b_bytes
    return np.array([rows, across, split, rate, read_bytes, 2 * rows * across, split != 1])


def _constants(device: Device, layout: str) -> Mapping[str, float]:
    transposed = {f"layout.{name}": float(letter == "t") for name, letter in zip("ab", layout, strict=True)}
    return transposed | {"arch.datacenter blackwell": float(device.gpu.sm in (100, 103))} | device.constants
