"""The cost of one warp-wide memory access: sectors of global memory, wavefronts of shared memory.

An access pattern is the byte addresses of the lanes of a batch relative to the first active one. In a loop the same
patterns occur again and again at other base addresses, so the costs of a pattern are computed once and kept.

Rules, as in the CUDA Programming Guide and the metrics of Nsight Compute: a request to global memory moves the distinct
32-byte sectors that its active lanes touch. Shared memory has 32 banks of 4 bytes; lanes that read the same word share
it; accesses of 8 bytes per lane go half a warp at a time, of 16 bytes a quarter. Each group of lanes takes as many
wavefronts as the busiest bank has distinct words. A load whose lanes agree pairwise (n and n^1, or n and n^2) returns
half as many registers, and its groups are twice as large (NVIDIA developer forum, "Unexpected shared memory bank
conflict", on compute capability 7.0 to 7.5; assumed for later ones: CUTLASS interleaves the lanes of its f32 kernels
for it). The rows of matrices (`ldmatrix`, `stmatrix`) go eight at a time, one matrix after the other. In an atomic
operation no two lanes share a word: those of one bank take turns, whether or not they access the same word (Gomez-Luna
et al., "Performance Modeling of Atomic Additions on GPU Scratchpad Memory", IEEE TPDS 24(11), 2013; assumed for later
GPUs). Lanes that add one to the same word, and whose old values nobody reads, share it from Ampere on
(`kernrec.ptx.instructions.atomics`).
"""

import numpy as np

from kernrec.ptx.state.types import Array

SEVERAL_WARPS = -2
"""Stands for the number of a warp where there is more than one."""


class Counts(dict[str, int]):
    """Totals by metric name; a metric that never occurred reads as 0."""

    def __missing__(self, key: str) -> int:
        return 0

    def bump(self, key: str, by: int) -> None:
        """Adds `by` to a metric."""
        self[key] = self.get(key, 0) + by


class AccessPattern:
    """Relative addresses of the active lanes of a batch, and what they cost."""

    __slots__ = (
        "_distinct", "_mask", "_passes", "_relative", "_rows", "_sectors", "_turns", "_wavefronts", "_words",
        "alignment", "by_warp", "count", "high", "low", "warps",
    )  # fmt: skip

    def __init__(self, relative: Array, lanes: Array | None, batch_lanes: int) -> None:
        """Byte addresses `relative` to the first, of the lanes with these numbers (None: all `batch_lanes`)."""
        self.low = int(relative.min())
        self.high = int(relative.max())
        self.alignment = int(np.bitwise_or.reduce(relative))
        self.count = len(relative)
        self._sectors: dict[tuple[int, int], int] = {}
        self._wavefronts: dict[tuple[int, int, bool], tuple[int, int]] = {}
        self._passes: dict[tuple[int, int], int] = {}
        self._turns: dict[tuple[int, int], int] = {}
        self.by_warp: dict[int, tuple[Array, Array]] = {}
        self._distinct: tuple[Array, Array] | None = None
        self._words: dict[tuple[int, int, int], tuple[Array, Array]] = {}
        if lanes is None:
            self._relative = relative.reshape(-1, 32)
            self._mask = None
            self._rows = np.arange(batch_lanes // 32)
            self.warps = batch_lanes // 32
        else:
            full = np.zeros(batch_lanes, np.int64)
            full[lanes] = relative
            mask = np.zeros(batch_lanes, np.bool_)
            mask[lanes] = True
            used = mask.reshape(-1, 32).any(axis=1)
            self._rows = np.flatnonzero(used)
            self._relative = full.reshape(-1, 32)[used]
            self._mask = mask.reshape(-1, 32)[used]
            self.warps = int(used.sum())

    def sectors(self, base: int) -> int:
        """Distinct 32-byte sectors summed over the warps, at most 32 aligned bytes per lane.

        `base`: address that the pattern is relative to.
        """
        key = (base & 31, 0)
        count = self._sectors.get(key)
        if count is None:
            units = (self._relative + (base & 31)) >> 5
            count = self._sectors[key] = int(_distinct(units, self._mask).sum())
        return count

    def l1_passes(self, base: int, size: int) -> int:
        """Clocks that L1 takes for the requests, summed over the warps, `size` aligned bytes per lane.

        L1 has the banks of shared memory, and compares four tags of 128-byte lines a clock (G. Smith of NVIDIA,
        forums.developer.nvidia.com, topic 49571).
        """
        key = (base & 127, size)
        count = self._passes.get(key)
        if count is None:
            lines = int(_distinct((self._relative + (base & 127)) >> 7, self._mask).sum())
            count = self._passes[key] = max(self.wavefronts(base, size, True)[0], -(-lines // 4))
        return count

    def sectors_by_warp(self, base: int) -> tuple[Array, Array]:
        """(warp, sector less that of `base`) of every distinct sector of every warp, warp after warp; arrays (N,)."""
        key = base & 31
        sectors = self.by_warp.get(key)
        if sectors is None:
            ordered, first = _sorted((self._relative + key) >> 5, self._mask)
            sectors = self.by_warp[key] = np.repeat(self._rows, first.sum(axis=1)), ordered[first]
        return sectors

    @property
    def relative(self) -> Array:
        """The addresses of the active lanes, relative to the first; int64 (lanes)."""
        relative: Array = self._relative.reshape(-1) if self._mask is None else self._relative[self._mask]
        return relative

    def _warp_of_lanes(self) -> Array:
        return np.repeat(self._rows, 32 if self._mask is None else self._mask.sum(axis=1))

    def words_by_block(self, base: int, size: int, unit: int, warps_per_block: int) -> tuple[Array, Array]:
        """Each word of `unit` bytes that a thread block accesses, once, `size` aligned bytes per lane.

        Returns:
            Of each, the position of the block in the batch and the number of the word from the one that has the byte
            `base` less `base % unit` on; int64 arrays (N,).
        """
        key = base % unit, size, unit
        words = self._words.get(key)
        if words is None:
            first = (self.relative + key[0]) // unit
            low, extent = int(first.min()), int(first.max() - first.min()) + size // unit + 1
            blocks = self._warp_of_lanes() // warps_per_block * extent - low
            pairs = np.unique(np.concatenate([blocks + first + k for k in range(max(size // unit, 1))]))
            words = self._words[key] = pairs // extent, pairs % extent + low
        return words

    def distinct_in_blocks(self, warps_per_block: int) -> tuple[Array, Array]:
        """Each address that a thread block accesses, once.

        Returns:
            Of each, the position among the active lanes of the first lane that accesses it, and the warp that does or
            `SEVERAL_WARPS`; int64 and int16 arrays (N,).
        """
        if self._distinct is None:
            warps, relative = self._warp_of_lanes(), self.relative
            blocks = warps // warps_per_block
            order = np.lexsort((relative, blocks))  # stable: lanes of one address stay in order
            new = np.ones(len(order), np.bool_)
            new[1:] = (np.diff(relative[order]) != 0) | (np.diff(blocks[order]) != 0)
            starts = np.flatnonzero(new)
            ends = np.append(starts[1:], len(order)) - 1
            lowest, highest = warps[order[starts]], warps[order[ends]]
            owner = np.where(lowest == highest, lowest, SEVERAL_WARPS).astype(np.int16)
            self._distinct = order[starts], owner
        return self._distinct

    def atomic_turns(self, base: int, size: int) -> int:
        """Turns that atomic operations on elements of `size` bytes take, summed over the sectors of all warps.

        Lanes that operate on one element take turns; elements of a sector are operated on together.
        """
        key = (base & 31, size)
        count = self._turns.get(key)
        if count is None:
            count, per_sector = 0, 32 // size
            elements = (self._relative + (base & 31)) // size
            for row, units in enumerate(elements):
                values, lanes = np.unique(units if self._mask is None else units[self._mask[row]], return_counts=True)
                starts = np.flatnonzero(np.diff(values // per_sector, prepend=values[0] // per_sector - 1))
                count += int(np.maximum.reduceat(lanes, starts).sum())
            self._turns[key] = count
        return count

    def local_sectors(self, base: int, size: int) -> int:
        """Sectors of local memory summed over the warps, `size` aligned bytes per lane.

        A word of local memory is stored lane after lane: where all lanes of a warp access the same word, that is 128
        bytes in a row.
        """
        words = max(1, size // 4)
        key = (base & 3, words)
        count = self._sectors.get(key)
        if count is None:
            first = (self._relative + (base & 3)) >> 2
            units = np.concatenate([(first + k) * 4 + np.arange(32) // 8 for k in range(words)], axis=1)
            mask = None if self._mask is None else np.tile(self._mask, words)
            count = self._sectors[key] = int(_distinct(units, mask).sum())
        return count

    def wavefronts(self, base: int, size: int, load: bool, atomic: bool = False) -> tuple[int, int]:
        """Passes through the shared-memory banks summed over the warps, `size` aligned bytes per lane.

        Returns:
            Wavefronts, and what they would be without any bank conflict: the groups of lanes with an active lane.
        """
        unit = max(size, 4)
        key = (base & (unit - 1), -unit if load else unit, atomic)
        result = self._wavefronts.get(key)
        if result is None:
            units = (self._relative + (base & (unit - 1))) // unit
            banks = 128 // unit  # of `unit` bytes: as many as lanes of a group
            if load and unit > 4:
                paired = _paired(units, self._mask)
                parts = [(units[paired], 2 * banks, paired), (units[~paired], banks, ~paired)]
            else:
                parts = [(units, banks, np.ones(len(units), np.bool_))]
            total, groups = 0, 0
            for rows, lanes, warps in parts:
                if len(rows):
                    mask = None if self._mask is None else self._mask[warps].reshape(-1, lanes)
                    total += int(_busiest_bank(rows.reshape(-1, lanes), mask, banks, atomic).sum())
                    groups += rows.size // lanes if mask is None else int(mask.any(axis=1).sum())
            result = self._wavefronts[key] = total, groups
        return result


_NONE = np.int64(1) << 62


def _sorted(units: Array, mask: Array | None) -> tuple[Array, Array]:
    """Units sorted per row, and which of them are the first of their value (masked-out lanes: never)."""
    ordered = np.sort(units if mask is None else np.where(mask, units, _NONE), axis=1)
    first = np.ones(ordered.shape, np.bool_)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=first[:, 1:])
    if mask is not None:
        first &= ordered != _NONE
    return ordered, first


def _paired(units: Array, mask: Array | None) -> Array:
    """Which warps (rows of 32 units) have lanes n and n^1, or lanes n and n^2, agree wherever both are active."""
    lanes = np.arange(32)
    agree = np.zeros(len(units), np.bool_)
    for distance in (1, 2):
        same = units == units[:, lanes ^ distance]
        if mask is not None:
            same |= ~(mask & mask[:, lanes ^ distance])
        agree |= same.all(axis=1)
    return agree


def _distinct(units: Array, mask: Array | None) -> Array:
    counts: Array = _sorted(units, mask)[1].sum(axis=1)
    return counts


def _busiest_bank(units: Array, mask: Array | None, banks: int, atomic: bool) -> Array:
    """Distinct units of each row's busiest bank; `atomic`: all its units, equal ones too."""
    ordered, counted = _sorted(units, mask)
    if atomic:
        counted = ordered != _NONE
    groups = len(ordered)
    slot = (np.arange(groups)[:, None] * banks + ordered % banks)[counted]
    busiest: Array = np.bincount(slot, minlength=groups * banks).reshape(groups, banks).max(axis=1)
    return busiest
