"""Matmuls outside of tensor cores, as cuBLAS runs them: tiles of its kernels, DRAM, L2 and the sustained clock.

cuBLAS has a few tiles for each generation, and other tiles for batched matmuls. Its kernel names, such as
`maxwell_sgemm_128x64_nn`, state the tiles in NeuSight's recordings of five GPUs. The best of these tiles is the bound.
Constants were fitted to the recordings of all five GPUs together.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.baselines.bound import Device
from kernrec.util.engine import query

Array = np.ndarray

_SPLITS = (1, 2, 4, 8, 16)
_SINGLE: Mapping[str, tuple[tuple[int, int], ...]] = {
    "pascal": ((128, 32), (64, 64), (32, 128)),
    "volta": ((128, 128), (64, 128), (64, 64), (128, 32), (32, 128), (32, 64), (32, 32)),
    "ampere": ((64, 128), (32, 128), (128, 32), (32, 64), (32, 32)),
    "later": ((128, 128), (64, 128), (32, 128), (128, 32), (32, 64), (32, 32)),
}
"""Tiles of single matmuls, by the generation of the kernels. The reduction may be split. No kernels of GPUs
later than the A100 were recorded. These GPUs are assumed to use the A100's tiles, including the largest tile.
"""
_BATCHED: Mapping[str, tuple[tuple[int, int], ...]] = {
    "pascal": ((64, 128),),
    "volta": ((64, 128), (64, 64), (128, 32), (32, 128)),
    "ampere": ((128, 128),),
    "later": ((128, 128),),
}
"""Tiles of batched matmuls."""
_SHARE, _SMALL_TILE = 0.935, 0.07
"""FMA rate that a 128 x 128 tile reaches, as a fraction, and the exponent of area for smaller tiles."""
_TILE_CLK = 3200.0
"""Clocks to fill a tile's pipeline and to write its results."""
_DRAM_SHARE = 0.8
"""Fraction of the data sheet's bandwidth that large matmuls reach."""
_STRIDED_K = 1860.0
"""Value of k, in elements per MiB of L2, at which DRAM takes longer by one more stream time. On Pascal, rows of the
second operand that are k apart slow down DRAM (`kStrided` in engine/query/products.cpp).
"""
_PICOJOULES = {60: 6.8, 61: 5.0, 70: 7.4, 75: 13.86, 80: 3.8, 86: 8.7, 89: 5.0, 90: 6.6, 100: 6.6, 103: 6.6}
"""Core energy in picojoules per FLOP of a matmul, by compute capability (89 for others): the FMA's energy by the power
model of November 2026, times 1.27 (`sustained.BESIDE_ARITHMETIC`). The T4's value is doubled, so that recorded times
fit the limit of 70 W. The A100's value is minimal, because its matmuls at 250 W show no limit. The values must not
change, because the trees were trained with them.
"""
_CORE_SHARE = 0.8
"""Fraction of the power limit available for these events. No recording determines the leakage of small GPUs, from which
the power model would compute it.
"""


def set_simt_tiles(products: Any, device: Device, layout: str, timed: tuple[tuple[int, int, int], ...]) -> None:
    """Pass a GPU's tiles and splits to the engine: first `timed`, then tiles for single and for batched matmuls."""
    gpu, family = device.gpu, _family(device.gpu)
    single = [(*tile, split) for tile in _SINGLE[family] for split in _SPLITS]
    batched = [(*tile, 1) for tile in _BATCHED[family]]
    rows, across, split = np.array([*timed, *single, *batched], dtype=float).T
    area = rows * across
    share = _SHARE * (area / 128**2) ** _SMALL_TILE
    tiles = np.array([rows, across, split, np.floor(query.FULL_WARPS / (area / 2048)), share])
    # An L2 of tens of MiB holds the operands of concurrent tiles.
    reread = family != "later"
    strided_k = _STRIDED_K * gpu.l2_bytes / 2**20 if family == "pascal" and layout[1] == "t" else 0.0
    products.set_simt_tiles(
        tiles, len(timed) + len(single), device.seconds(_TILE_CLK), device.element_bytes,
        gpu.memory_bandwidth * _DRAM_SHARE, reread, strided_k, 1.0 / _sustained_share(device) - 1.0,
        device.timing.alone,
    )  # fmt: skip


def _sustained_share(device: Device) -> float:
    gpu = device.gpu
    drawn_w = 1e-12 * _PICOJOULES.get(gpu.sm, _PICOJOULES[89]) * gpu.peak_flops("f32")
    return min(1.0, _CORE_SHARE * gpu.tdp_w / drawn_w)


def _family(gpu: GPU) -> str:
    """Return the generation whose kernels cuBLAS runs on a GPU."""
    if gpu.sm < 70:
        return "pascal"
    if gpu.sm < 80:
        return "volta"
    return "ampere" if gpu.sm == 80 else "later"
