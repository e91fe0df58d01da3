"""Matmuls outside of tensor cores, as cuBLAS runs them: the tiles of its kernels, DRAM, L2 and the sustained clock.

The tiles were found in the kernel names of NeuSight's recordings of five GPUs, such as `maxwell_sgemm_128x64_nn`. The
time with the best tile is the bound. The constants were fitted to the recordings of all five GPUs together.
"""

from collections.abc import Mapping

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.baselines.bound import Device
from kernrec.util.engine import query

_SPLITS = (1, 2, 4, 8, 16)
_SINGLE: Mapping[str, tuple[tuple[int, int], ...]] = {
    "pascal": ((128, 32), (64, 64), (32, 128)),
    "volta": ((128, 128), (64, 128), (64, 64), (128, 32), (32, 128), (32, 64), (32, 32)),
    "ampere": ((64, 128), (32, 128), (128, 32), (32, 64), (32, 32)),
    "later": ((128, 128), (64, 128), (32, 128), (128, 32), (32, 64), (32, 32)),
}
"""Tiles of single matmuls as (rows, columns), keyed by generation."""
_BATCHED: Mapping[str, tuple[tuple[int, int], ...]] = {
    "pascal": ((64, 128),),
    "volta": ((64, 128), (64, 64), (128, 32), (32, 128)),
    "ampere": ((128, 128),),
    "later": ((128, 128),),
}
"""Tiles of batched matmuls as (rows, columns), keyed by generation."""
_SHARE, _SMALL_TILE = 0.935, 0.07
"""Fraction of the FMA rate that a 128 x 128 tile reaches, and an exponent for smaller tiles. A smaller tile reaches the
fraction `_SHARE * (area / 128**2) ** _SMALL_TILE`."""
_TILE_CLK = 3200.0
"""Clocks to fill the pipeline of a tile and to write the tile's results."""
_DRAM_SHARE = 0.8
"""Fraction of the data sheet's bandwidth that large matmuls reach."""
_STRIDED_K = 1860.0
"""Distance of rows at which DRAM slows down on Pascal (`strided_k` in products.cpp), in elements per MiB of L2."""
_PICOJOULES = {60: 6.8, 61: 5.0, 70: 7.4, 75: 13.86, 80: 3.8, 86: 8.7, 89: 5.0, 90: 6.6, 100: 6.6, 103: 6.6}
"""Dynamic energy of the core in matmuls, in pJ/FLOP, keyed by compute capability (times ten). Each entry is 1.27 times
the energy of an FMA in the power model of November 2026. The entry of the T4 (key 75) is doubled to fit the T4's limit
of 70 W. A change of an entry requires training all trees again."""
_CORE_SHARE = 0.8
"""Fraction of the power limit that is available for the core's work. No recording determines it for small GPUs."""


def simt_tiles(device: Device, layout: str, timed: tuple[tuple[int, int, int], ...]) -> tuple[np.ndarray, list[float]]:
    """Return the tiles of cuBLAS's kernels on a GPU, and figures of the GPU, as `Products` in products.cpp needs them.

    The predicted times of the tiles in `timed` (rows, columns, number of parts of the reduction) are features of the
    trees that predict cuBLAS's time.
    """
    gpu, family = device.gpu, _family(device.gpu)
    single = [(*tile, split) for tile in _SINGLE[family] for split in _SPLITS]
    batched = [(*tile, 1) for tile in _BATCHED[family]]
    rows, across, split = np.array([*timed, *single, *batched], dtype=float).T
    area = rows * across
    share = _SHARE * (area / 128**2) ** _SMALL_TILE
    tiles = np.array([rows, across, split, np.floor(query.FULL_WARPS / (area / 2048)), share])
    # On Ampere and later GPUs, L2 holds the operands of all concurrent tiles, so DRAM delivers each operand only once.
    reread = family != "later"
    drawn_w = 1e-12 * _PICOJOULES.get(gpu.sm, _PICOJOULES[89]) * gpu.peak_flops("f32")
    sustained = min(1.0, _CORE_SHARE * gpu.tdp_w / drawn_w)  # Clock at the power limit / boost clock
    strided_k = _STRIDED_K * gpu.l2_bytes / 2**20 if family == "pascal" and layout[1] == "t" else 0.0
    return tiles, [
        device.seconds(_TILE_CLK), len(timed) + len(single), device.element_bytes, gpu.memory_bandwidth * _DRAM_SHARE,
        strided_k, 1.0 / sustained - 1.0, float(reread), float(device.timing.alone),
    ]  # fmt: skip


def _family(gpu: GPU) -> str:
    """Return the generation of the kernels that cuBLAS runs on a GPU."""
    if gpu.sm < 70:
        return "pascal"
    if gpu.sm < 80:
        return "volta"
    return "ampere" if gpu.sm == 80 else "later"
