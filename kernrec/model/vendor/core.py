"""The arithmetic of stacks' times: the bound of matrix products with its features, and the trees that correct a bound.

One source in two forms, as `kernrec.model.prior.core` explains: as Python an axis of length one stands in front of the
problems, of the tiles, of the trees and of the columns that trees read, and each name stands for all problems, or for
all of them in all tiles, trees or columns.

`features.matmul` and `features.simt_products` make what products need and say what the terms mean, `timed` and
`compact_trees` what trees need.
"""

from typing import Any

from kernrec.model.vendor.tilewise import (
    aligned,
    ceil,
    exp,
    floor,
    least,
    log2,
    maximum,
    minimum,
    of_tile,
    ordered,
    over_trees,
    per_tile,
    power,
    row_of,
    select,
    sqrt,
)

BATCH, M, N, K = 0, 1, 2, 3
"""Rows of sizes."""
SIZES = 4
FLOPS_S, DRAM_S, L2_S, LAUNCH_S, TOTAL_S, WORK_S, MEMORY_S, TILES_S = 0, 1, 2, 3, 4, 5, 6, 7
MOVED, WEIGHTS, RESULT = 8, 9, 10
"""Rows of work: seconds of math, DRAM and L2 at the rates of the data sheet, and of the launch; the bound; the card's
work alone; seconds of DRAM and L2 as a library reaches them, and of the best tile; bytes."""
WORK = 11
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
ALIGNED = 29
"""First rows of the features whose logarithm is taken."""
FULL, FILLED, REST = 32, 38, 40
"""First rows after those."""
FIGURES = 42
MOST_ALIGNED, MOST_ALIGNED_ROWS = 64, 256
"""The largest power of two that counts in sizes; of m, the larger one."""

WARPS = 16.0
"""Fewer warps on an SM reach less of its rate."""
FEW_WARPS = 0.3
"""They reach the rate times their share of `WARPS` to this power."""
REREAD = 0.5
"""Share of operands beyond L2 that every tile reads anew."""
OVERLAP = 3.4
"""Exponent of the smooth maximum of math and memory outside of tensor cores."""
STRIDED, STRIDED_POWER = 1.86, 0.54
"""Rows of the second operand that are k apart cost more of DRAM's time: this, and k over a length to the power."""
THERMAL_S, THERMAL_POWER = 300e-6, 1.4
"""Calls that are timed alone reach the sustained clock only where they are long beside the pause between two."""

MOST_RATIO = 20.0
"""Largest logarithm of a correction; only trees that no training made go beyond it."""
GROUP = 32
"""Trees that all rows go down at a time."""


class Products:
    """Figures that the products of a data type have in common on a card."""

    def __init__(
        self, a_bytes: float, b_bytes: float, c_bytes: float, peak_flops: float, bandwidth: float, dram: float,
        l2: float, l2_bytes: float, sms: float, launch_s: float, working_sets: float, wave_tiles: Any,
    ) -> None:  # fmt: skip
        """Of a card.

        Args:
            a_bytes, b_bytes, c_bytes: of an element that is read and quantized, of the weights and of the result.
            peak_flops, bandwidth: of the data sheet.
            dram, l2: bytes per second that a library reaches.
            launch_s: seconds of an empty launch.
            working_sets: copies of the weights that the timed loop goes through.
            wave_tiles: rows and columns of the tiles whose waves are counted, (2, `WAVES`).
        """
        self.a_bytes = a_bytes
        self.b_bytes = b_bytes
        self.c_bytes = c_bytes
        self.peak_flops = peak_flops
        self.bandwidth = bandwidth
        self.dram = dram
        self.l2 = l2
        self.l2_bytes = l2_bytes
        self.sms = sms
        self.launch_s = launch_s
        self.working_sets = working_sets
        self.wave_tiles = wave_tiles


class TensorTiles:
    """The tiles and splits of the reduction on tensor cores."""

    def __init__(self, tiles: Any, count: int, read_rate: float, fill_s: float) -> None:
        """On a card.

        Args:
            tiles: rows up to `JOINED`, (rows, T); count: T.
            read_rate: bytes per second at which an SM reads operands.
            fill_s: seconds to fill a tile's pipeline and to write its results.
        """
        self.tiles = tiles
        self.count = count
        self.read_rate = read_rate
        self.fill_s = fill_s


class SimtTiles:
    """The tiles and splits of the reduction outside of tensor cores."""

    def __init__(
        self, tiles: Any, batched: int, count: int, fill_s: float, element_bytes: float, dram: float, reread: bool,
        strided_k: float, slower: float, alone: bool,
    ) -> None:  # fmt: skip
        """On a card.

        Args:
            tiles: rows up to `SHARE`, (rows, T): those of single products from `TIMED` on, then from `batched` on those
                of batched ones; count: T.
            fill_s: seconds to fill a tile's pipeline and to write its results.
            dram: bytes per second that such products reach.
            reread: whether operands beyond L2 are read again.
            strided_k: the length of `STRIDED`; 0 where rows that are far apart cost nothing.
            slower: by what a product takes longer at the clock that the power limit leaves, less 1.
            alone: whether calls were timed one at a time.
        """
        self.tiles = tiles
        self.batched = batched
        self.count = count
        self.fill_s = fill_s
        self.element_bytes = element_bytes
        self.dram = dram
        self.reread = reread
        self.strided_k = strided_k
        self.slower = slower
        self.alone = alone


class Trees:
    """T trees with N nodes in all: `compact_trees.CompactTrees`."""

    def __init__(self, start: Any, nodes: Any, leaf: Any, base: float, levels: int) -> None:
        """Of their arrays.

        Args:
            start: the first node of each tree, (T,).
            nodes: of each 256 times its left child plus the feature that it compares, and the `ordered` threshold,
                int32 (2 N,): all that a step needs is in one line of the processor's cache. A leaf is its own left
                child, and no value reaches its threshold.
            leaf: the values of the leaves, (N,).
            base: added to every sum of leaves.
            levels: splits on the longest path.
        """
        self.start = start
        self.nodes = nodes
        self.leaf = leaf
        self.base = base
        self.levels = levels


class Reading:
    """Places from which trees read the features of problems."""

    def __init__(self, trees: Trees, features: int, columns: Any, places: Any, own_columns: Any) -> None:
        """Of rows with so many features.

        Args:
            columns, places: of the features that problems differ in, their place in a row, and that in a table of
                features.
            own_columns: the places of those that stacks differ in, too.
        """
        self.trees = trees
        self.features = features
        self.columns = columns
        self.places = places
        self.own_columns = own_columns


def tensor_products(products: Products, tiles: TensorTiles, sizes: Any, seconds: Any, work: Any, figures: Any) -> None:
    """The bound and the features of products on tensor cores.

    Args:
        sizes: (`SIZES`, N).
        seconds: filled with the time of each tile, (N, T), infinity where the parts of a split would be too short.
        work: filled, (`WORK`, N); figures: (`FIGURES`, N).
    """
    work_of_products(products, sizes, work)
    tensor_tiles(products, tiles, sizes, seconds, work)
    figures_of_products(products, sizes, seconds, work, figures)


def simt_products(products: Products, tiles: SimtTiles, sizes: Any, seconds: Any, work: Any, figures: Any) -> None:
    """The same outside of tensor cores."""
    work_of_products(products, sizes, work)
    simt_tiles(products, tiles, sizes, seconds, work)
    figures_of_products(products, sizes, seconds, work, figures)


def work_of_products(products: Products, sizes: Any, work: Any) -> None:
    """Fills the rows of `work` that no tile decides about."""
    for i in range(sizes.shape[1]):
        batch, m, n, k = sizes[BATCH, i], sizes[M, i], sizes[N, i], sizes[K, i]
        weights, result = products.b_bytes * batch * n * k, products.c_bytes * batch * m * n
        moved = products.a_bytes * batch * m * k + weights + result
        resident = minimum(maximum(2.0 - products.working_sets * weights / products.l2_bytes, 0.0), 1.0)
        work[FLOPS_S, i] = 2.0 * batch * m * n * k / products.peak_flops
        work[DRAM_S, i] = moved / products.bandwidth
        work[L2_S, i] = moved / products.l2
        work[LAUNCH_S, i] = products.launch_s
        work[MEMORY_S, i] = maximum((moved - resident * weights) / products.dram, moved / products.l2)
        work[MOVED, i] = moved
        work[WEIGHTS, i] = weights
        work[RESULT, i] = result


def tensor_tiles(products: Products, of_card: TensorTiles, sizes: Any, seconds: Any, work: Any) -> None:
    """Fills `seconds`, the time of the tiles in waves over the SMs for each tile and split of the reduction, and in
    `work` that of the best of them and the bound."""
    tiles, fill_s = of_card.tiles, of_card.fill_s
    for i in range(sizes.shape[1]):
        batch, m = per_tile(sizes[BATCH, i]), per_tile(sizes[M, i])
        n, k = per_tile(sizes[N, i]), per_tile(sizes[K, i])
        for t in range(tiles.shape[1]):
            split = tiles[SPLIT, t]
            depth = ceil(k / split / 32.0) * 32.0
            read_s = tiles[READ_BYTES, t] * depth / of_card.read_rate
            tile_s = maximum(tiles[TILE_FLOPS, t] * depth / tiles[RATE, t], read_s)
            joined_s = (8.0 * batch * m * n * split / products.l2 + fill_s) * tiles[JOINED, t]
            waves = ceil(batch * ceil(m / tiles[ROWS, t]) * ceil(n / tiles[COLUMNS, t]) * split / products.sms)
            whole_s = waves * (tile_s + fill_s) + joined_s
            seconds[i, t] = select((tiles[JOINED, t] == 0.0) | (k >= LEAST_SPLIT * split), whole_s, INFINITY)
        best_s = least(seconds, i, 0, of_card.count)
        # Math and memory overlap.
        busy_s = sqrt(sqrt(fourth_power(best_s) + fourth_power(work[MEMORY_S, i])))
        work[TILES_S, i] = best_s
        work[WORK_S, i] = busy_s
        work[TOTAL_S, i] = products.launch_s + busy_s


def fourth_power(value: Any) -> Any:
    squared = value * value
    return squared * squared


def simt_tiles(products: Products, of_card: SimtTiles, sizes: Any, seconds: Any, work: Any) -> None:
    """As `tensor_tiles`, outside of tensor cores."""
    tiles, fill_s, element = of_card.tiles, of_card.fill_s, of_card.element_bytes
    sms, l2, l2_bytes = products.sms, products.l2, products.l2_bytes
    for i in range(sizes.shape[1]):
        batch, m = per_tile(sizes[BATCH, i]), per_tile(sizes[M, i])
        n, k = per_tile(sizes[N, i]), per_tile(sizes[K, i])
        operands = element * batch * (m * k + n * k)
        once = operands + element * batch * m * n
        beyond_l2 = minimum(maximum(operands / l2_bytes - 1.0, 0.0), 1.0)
        strided: Any = 1.0
        if of_card.strided_k > 0.0:
            strided = STRIDED + power(k / of_card.strided_k, STRIDED_POWER)
        for t in range(tiles.shape[1]):
            rows, across, split = tiles[ROWS, t], tiles[COLUMNS, t], tiles[SPLIT, t]
            launched = batch * ceil(m / rows) * ceil(n / across) * split
            # The tiles that the busiest SM runs, how many of them at a time, and what their warps reach of the rate.
            per_sm = ceil(launched / sms)
            resident = minimum(maximum(tiles[FEW, t], 1.0), per_sm)
            reached = power(minimum(1.0, resident * (rows * across / 2048.0) / WARPS), FEW_WARPS)
            depth = ceil(k / split / 8.0) * 8.0
            rate = products.peak_flops * (tiles[SHARE, t] * reached)
            math_s = per_sm * 2.0 * rows * across * depth * sms / rate + ceil(per_sm / resident) * fill_s
            read = launched * (rows + across) * element * depth
            again = 0.0
            if of_card.reread:
                # Bytes of the operands in use at one time, of which L2 holds less than all.
                in_use = sms * resident * (rows + across) * element * 4096.0
                again = beyond_l2 * (1.0 - minimum(l2_bytes / in_use, 1.0))
            moved = once + maximum(read - once, 0.0) * REREAD * again
            memory_s = maximum(moved / of_card.dram * strided, read / l2)
            longer_s = maximum(math_s, memory_s)
            overlapped = power(minimum(math_s, memory_s) / longer_s, OVERLAP)
            whole_s = longer_s * power(1.0 + overlapped, 1.0 / OVERLAP)
            joined_s = 8.0 * batch * m * n * split / l2 + fill_s
            parts_s = select(k >= LEAST_SPLIT * split, whole_s + joined_s, INFINITY)
            seconds[i, t] = select(split == 1.0, whole_s, parts_s)
        single_s = least(seconds, i, TIMED, of_card.batched)
        batched_s = least(seconds, i, of_card.batched, of_card.count)
        best_s = select(sizes[BATCH, i] > 1.0, batched_s, single_s)
        held: Any = 1.0
        if of_card.alone:
            held = power(best_s / (best_s + THERMAL_S), THERMAL_POWER)
        sustained_s = best_s * (1.0 + held * of_card.slower)
        work[TILES_S, i] = best_s
        work[WORK_S, i] = sustained_s
        work[TOTAL_S, i] = products.launch_s + sustained_s


def figures_of_products(products: Products, sizes: Any, seconds: Any, work: Any, figures: Any) -> None:
    """Fills `figures`, the features."""
    tiles, sms, l2_bytes = products.wave_tiles, products.sms, products.l2_bytes
    for i in range(sizes.shape[1]):
        batch, m, n, k = sizes[BATCH, i], sizes[M, i], sizes[N, i], sizes[K, i]
        total, best_s = work[TOTAL_S, i], work[TILES_S, i]
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
            tile_s = of_tile(seconds, i, tile)
            figures[FIRST_TIME + tile, i] = select(tile_s < INFINITY, tile_s, best_s) / total
        figures[ALIGNED, i] = aligned(m, MOST_ALIGNED_ROWS)
        figures[ALIGNED + 1, i] = aligned(n, MOST_ALIGNED)
        figures[ALIGNED + 2, i] = aligned(k, MOST_ALIGNED)
        figures[REST, i] = m - floor(m / 128.0) * 128.0
        figures[REST + 1, i] = n - floor(n / 128.0) * 128.0
        for figure in range(FULL):
            figures[figure, i] = log2(figures[figure, i])


def corrected(
    reading: Reading, table: Any, own: Any, base: Any, each: int, least_value: Any, most: float, count: int, flat: Any,
    reached: Any, sums: Any, values: Any,
) -> None:  # fmt: skip
    """Fills `values` (S, N), a quantity of N problems in S stacks: what the trees correct, within its ends.

    Args:
        table: features of the problems, (features, N).
        own: features that stacks differ in, too, (features, S, N).
        base: what the trees correct, (S, N), or (1, N) where it is the same for all stacks: then `each` is 0, else 1.
        least_value: no value is smaller, (N,); most: or larger.
        count: N.
        flat: the `ordered` rows of features of all problems of the first stack, then of the next, one after the other;
            those that problems differ in are filled in.
        reached: of `sums_of_leaves`; sums: `values` as one row, (S N,).
    """
    columns, places, own_columns = reading.columns, reading.places, reading.own_columns
    for s in range(values.shape[0]):
        for i in range(values.shape[1]):
            first = row_of(s * count + i, count) * reading.features
            for c in range(len(columns)):
                flat[first + columns[c]] = ordered(table[places[c], i])
            for c in range(len(own_columns)):
                flat[first + own_columns[c]] = ordered(own[c, s, i])
    sums_of_leaves(reading.trees, reading.features, values.shape[0] * count, flat, reached, sums)
    for s in range(values.shape[0]):
        for i in range(values.shape[1]):
            ratio = exp(minimum(maximum(values[s, i], -MOST_RATIO), MOST_RATIO))
            values[s, i] = minimum(maximum(base[s * each, i] * ratio, least_value[i]), most)


def sums_of_leaves(trees: Trees, features: int, count: int, flat: Any, reached: Any, sums: Any) -> None:
    """Fills `sums` (C,), the leaves that rows of features reach in all trees and the trees' base.

    All rows go down some trees, level by level, before the next ones: the nodes of these stay in the cache, and the
    processor need not wait for one step before it begins another.

    Args:
        features: of a row; count: C.
        flat: C `ordered` rows of features, one after the other.
        reached: room for the node that each row has reached in each tree, int32 (`GROUP` C,).
    """
    start, nodes, leaf, rows = trees.start, trees.nodes, trees.leaf, len(sums)
    for r in range(rows):
        sums[r] = trees.base
    for group in range(0, len(start), GROUP):
        together = min(GROUP, len(start) - group)
        for tree in range(together):
            for r in range(rows):
                reached[tree * rows + r] = start[group + tree]
        for _ in range(trees.levels):
            for tree in range(together):
                for r in range(rows):
                    node, first = reached[tree * rows + r], per_tile(row_of(r, count)) * features
                    link = nodes[2 * node]
                    reached[tree * rows + r] = (link >> 8) + (flat[first + (link & 255)] >= nodes[2 * node + 1])
        for tree in range(together):
            for r in range(rows):
                sums[r] = sums[r] + over_trees(leaf[reached[tree * rows + r]])
