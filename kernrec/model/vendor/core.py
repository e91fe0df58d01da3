"""The arithmetic of the bound of matrix products: bytes, tiles in waves over the SMs, and the features.

One source in two forms, as `kernrec.model.prior.core` explains: as Python an axis of length one stands in front of the
problems, and in front of the tiles, and each name stands for all problems, or for all of them in all tiles. General
powers are left to NumPy, whose last bit is not that of a C library: loops end before one and go on after it.

`features.matmul` and `features.simt_products` call it and say what the terms mean.
"""

from typing import Any

from kernrec.model.vendor.tilewise import ceil, floor, least, maximum, minimum, per_tile, select

BATCH, M, N, K = 0, 1, 2, 3
"""Rows of sizes."""
SIZES = 4
FLOPS_S, DRAM_S, L2_S, MEMORY_S, MOVED, WEIGHTS, RESULT, TILES_S = 0, 1, 2, 3, 4, 5, 6, 7
"""Rows of work: seconds of math, DRAM and L2 at the rates of the data sheet, of DRAM and L2 as a library reaches them,
bytes, and seconds of the best tile."""
WORK = 8
ROWS, COLUMNS, SPLIT = 0, 1, 2
"""Rows of tiles; a reduction is split into so many parts."""
RATE, READ_BYTES, TILE_FLOPS, JOINED = 3, 4, 5, 6
"""Further rows on tensor cores: FLOP/s of a tile, bytes and FLOPs of an element of its depth, 1 where parts are
joined."""
FEW, SHARE = 3, 4
"""Further rows outside of tensor cores: the most tiles that an SM runs at a time, and their share of the rate."""
LEAST_SPLIT = 256
"""A part of a split reduction has at least this many elements."""
INFINITY = float("inf")

WAVES, FIRST_SQUARE, SECOND_SQUARE = 6, 2, 5
TIMED = 7
"""Tiles whose waves are features, of which these two are square, and tiles whose time is one."""
LEAST_SHARE = 2.0**-40
LEAST_SIZE = 0.5
"""Stand for a share and for a size of 0 (attention without a window), where the logarithm is taken."""
SHARES, FIRST_SIZE, TOTAL, BYTES, TILES, AREAS, FIRST_WAVES, FIRST_TIME = 0, 4, 8, 9, 12, 13, 16, 22
"""Rows of the features whose logarithm is taken."""
ALIGNED, FULL, FILLED, REST = 29, 32, 38, 40
"""First rows after those, `ALIGNED` by the caller; the logarithm of it is taken, too."""
FIGURES = 42

WARPS = 16.0
"""Fewer warps on an SM reach less of its rate."""
REREAD = 0.5
"""Share of operands beyond L2 that every tile reads anew."""


def work_of_products(
    sizes: Any, a_bytes: float, b_bytes: float, c_bytes: float, peak_flops: float, bandwidth: float, dram: float,
    l2: float, l2_bytes: float, working_sets: float, work: Any,
) -> None:  # fmt: skip
    """Fills the first rows of `work` (`WORK`, N).

    Args:
        sizes: (`SIZES`, N).
        a_bytes, b_bytes, c_bytes: of an element that is read and quantized, of the weights and of the result.
        peak_flops, bandwidth: of the data sheet.
        dram, l2: bytes per second that a library reaches.
        working_sets: copies of the weights that the timed loop goes through.
    """
    for i in range(sizes.shape[1]):
        batch, m, n, k = sizes[BATCH, i], sizes[M, i], sizes[N, i], sizes[K, i]
        weights, result = b_bytes * batch * n * k, c_bytes * batch * m * n
        moved = a_bytes * batch * m * k + weights + result
        resident = minimum(maximum(2.0 - working_sets * weights / l2_bytes, 0.0), 1.0)
        work[FLOPS_S, i] = 2.0 * batch * m * n * k / peak_flops
        work[DRAM_S, i] = moved / bandwidth
        work[L2_S, i] = moved / l2
        work[MEMORY_S, i] = maximum((moved - resident * weights) / dram, moved / l2)
        work[MOVED, i] = moved
        work[WEIGHTS, i] = weights
        work[RESULT, i] = result


def tensor_tiles(
    sizes: Any, tiles: Any, count: int, sms: float, read_rate: float, fill_s: float, l2: float, seconds: Any, work: Any
) -> None:
    """Fills `seconds` (N, T), the time of the tiles in waves over the SMs for each tile and split of the reduction,
    infinity where the parts of a split would be too short, and the row of the best of them in `work`.

    Args:
        sizes: (`SIZES`, N).
        tiles: rows up to `JOINED`, (rows, T); count: T.
        read_rate: bytes per second at which an SM reads operands.
        fill_s: seconds to fill a tile's pipeline and to write its results.
    """
    for i in range(sizes.shape[1]):
        batch, m = per_tile(sizes[BATCH, i]), per_tile(sizes[M, i])
        n, k = per_tile(sizes[N, i]), per_tile(sizes[K, i])
        for t in range(tiles.shape[1]):
            split = tiles[SPLIT, t]
            depth = ceil(k / split / 32.0) * 32.0
            tile_s = maximum(tiles[TILE_FLOPS, t] * depth / tiles[RATE, t], tiles[READ_BYTES, t] * depth / read_rate)
            joined_s = (8.0 * batch * m * n * split / l2 + fill_s) * tiles[JOINED, t]
            waves = ceil(batch * ceil(m / tiles[ROWS, t]) * ceil(n / tiles[COLUMNS, t]) * split / sms)
            whole_s = waves * (tile_s + fill_s) + joined_s
            seconds[i, t] = select((tiles[JOINED, t] == 0.0) | (k >= LEAST_SPLIT * split), whole_s, INFINITY)
        work[TILES_S, i] = least(seconds[i], 0, count)


def simt_waves(sizes: Any, tiles: Any, sms: float, per_sm: Any, resident: Any, busy: Any) -> None:
    """Fills (N, T) each: the tiles that the busiest SM runs, how many of them at a time, and their warps over those
    that reach the whole rate."""
    for i in range(sizes.shape[1]):
        batch, m, n = per_tile(sizes[BATCH, i]), per_tile(sizes[M, i]), per_tile(sizes[N, i])
        for t in range(tiles.shape[1]):
            rows, across = tiles[ROWS, t], tiles[COLUMNS, t]
            tiles_of_sm = ceil(batch * ceil(m / rows) * ceil(n / across) * tiles[SPLIT, t] / sms)
            at_a_time = minimum(maximum(tiles[FEW, t], 1.0), tiles_of_sm)
            per_sm[i, t] = tiles_of_sm
            resident[i, t] = at_a_time
            busy[i, t] = minimum(1.0, at_a_time * (rows * across / 2048.0) / WARPS)


def simt_parts(
    sizes: Any, tiles: Any, per_sm: Any, resident: Any, reached: Any, strided: Any, element: float, sms: float,
    peak_flops: float, fill_s: float, l2: float, l2_bytes: float, dram: float, reread: bool, parts: Any,
) -> None:  # fmt: skip
    """Fills `parts` (2, N, T): the seconds of math, and those of DRAM and L2.

    Args:
        reached: the share of the rate that the resident warps reach, (N, T).
        strided: factor of DRAM's time, (N,).
        element: bytes of one.
        reread: whether operands beyond L2 are read again.
    """
    for i in range(sizes.shape[1]):
        batch, m = per_tile(sizes[BATCH, i]), per_tile(sizes[M, i])
        n, k = per_tile(sizes[N, i]), per_tile(sizes[K, i])
        operands = element * batch * (m * k + n * k)
        once = operands + element * batch * m * n
        beyond_l2 = minimum(maximum(operands / l2_bytes - 1.0, 0.0), 1.0)
        for t in range(tiles.shape[1]):
            rows, across, split = tiles[ROWS, t], tiles[COLUMNS, t], tiles[SPLIT, t]
            launched = batch * ceil(m / rows) * ceil(n / across) * split
            depth = ceil(k / split / 8.0) * 8.0
            rate = peak_flops * (tiles[SHARE, t] * reached[i, t])
            math_s = per_sm[i, t] * 2.0 * rows * across * depth * sms / rate
            read = launched * (rows + across) * element * depth
            again = 0.0
            if reread:
                # Bytes of the operands in use at one time, of which L2 holds less than all.
                in_use = sms * resident[i, t] * (rows + across) * element * 4096.0
                again = beyond_l2 * (1.0 - minimum(l2_bytes / in_use, 1.0))
            moved = once + maximum(read - once, 0.0) * REREAD * again
            parts[0, i, t] = math_s + ceil(per_sm[i, t] / resident[i, t]) * fill_s
            parts[1, i, t] = maximum(moved / dram * per_tile(strided[i]), read / l2)


def simt_tiles(
    sizes: Any, tiles: Any, timed: int, batched: int, end: int, fill_s: float, l2: float, seconds: Any, work: Any
) -> None:
    """Turns `seconds` (N, T) of whole tiles into those of tiles whose parts are joined, infinity where parts would be
    too short, and fills the row of the best of a product's tiles in `work`.

    Args:
        timed, batched, end: where the tiles of single products begin, those of batched ones, and T.
    """
    for i in range(sizes.shape[1]):
        batch, m = per_tile(sizes[BATCH, i]), per_tile(sizes[M, i])
        n, k = per_tile(sizes[N, i]), per_tile(sizes[K, i])
        for t in range(tiles.shape[1]):
            split = tiles[SPLIT, t]
            joined_s = 8.0 * batch * m * n * split / l2 + fill_s
            parts_s = select(k >= LEAST_SPLIT * split, seconds[i, t] + joined_s, INFINITY)
            seconds[i, t] = select(split == 1.0, seconds[i, t], parts_s)
        single_s, batched_s = least(seconds[i], timed, batched), least(seconds[i], batched, end)
        work[TILES_S, i] = select(sizes[BATCH, i] > 1.0, batched_s, single_s)


def figures_of_products(
    sizes: Any, work: Any, seconds: Any, total_s: Any, tiles: Any, sms: float, l2_bytes: float, figures: Any
) -> None:
    """Fills `figures` (`FIGURES`, N) but for the rows from `ALIGNED` to `FULL`: the features before any logarithm.

    Args:
        seconds: of the tiles that are timed, (`TIMED`, N).
        total_s: the bound, (N,).
        tiles: rows and columns of the tiles whose waves are counted, (2, `WAVES`).
    """
    for i in range(sizes.shape[1]):
        batch, m, n, k = sizes[BATCH, i], sizes[M, i], sizes[N, i], sizes[K, i]
        total, best_s = total_s[i], work[TILES_S, i]
        figures[SHARES, i] = maximum(best_s / total, LEAST_SHARE)
        figures[SHARES + 1, i] = maximum(work[MEMORY_S, i] / total, LEAST_SHARE)
        figures[SHARES + 2, i] = maximum(work[FLOPS_S, i] / total, LEAST_SHARE)
        figures[SHARES + 3, i] = maximum(work[DRAM_S, i] / total, LEAST_SHARE)
        for size in range(SIZES):
            figures[FIRST_SIZE + size, i] = maximum(sizes[size, i], LEAST_SIZE)
        figures[TOTAL, i] = total * 1e6
        figures[BYTES, i] = work[MOVED, i] / l2_bytes
        figures[BYTES + 1, i] = work[WEIGHTS, i] / l2_bytes
        figures[BYTES + 2, i] = work[RESULT, i] / l2_bytes
        figures[TILES, i] = batch * ceil(m / 128.0) * ceil(n / 128.0) / sms
        figures[AREAS, i] = m * n
        figures[AREAS + 1, i] = m * k
        figures[AREAS + 2, i] = n * k
        for wave in range(WAVES):
            launched = batch * ceil(m / tiles[ROWS, wave]) * ceil(n / tiles[COLUMNS, wave])
            figures[FIRST_WAVES + wave, i] = launched / sms
            figures[FULL + wave, i] = launched / (ceil(launched / sms) * sms)
        for square in range(2):
            wave = SECOND_SQUARE if square else FIRST_SQUARE
            area = tiles[ROWS, wave] * tiles[COLUMNS, wave]
            launched = batch * ceil(m / tiles[ROWS, wave]) * ceil(n / tiles[COLUMNS, wave])
            figures[FILLED + square, i] = m * n / (launched / batch * area)
        for tile in range(TIMED):
            figures[FIRST_TIME + tile, i] = select(seconds[tile, i] < INFINITY, seconds[tile, i], best_s) / total
        figures[REST, i] = m - floor(m / 128.0) * 128.0
        figures[REST + 1, i] = n - floor(n / 128.0) * 128.0
