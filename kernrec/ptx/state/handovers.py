"""Races in global memory between threads that hand over what they stored by `.release` and `.acquire` of a scope that
spans blocks (PTX ISA, section 8, "Memory consistency model").

For every word of a buffer that a kernel may write: who wrote it last, and when, in the times of `vector_clocks`. A load
of what another warp wrote, or a store over it, is a race where the warp does not know of it: by barriers, or by an
acquire at the word where a release brought that knowledge. Stores of a warp of an earlier batch are known to a block
that acquired a later release of that warp. Accesses that are strong by themselves (`.relaxed`, `.volatile`, atomic
ones) race with nobody. Not followed: stores after loads, elements of fewer than four bytes, copies in bulk.

A thread may see late what another one stored: the first look of a warp at what was released finds what was there before
(`Handovers.overlooked`), and brings no knowledge. So a wait that looks but once is found, whatever the order of blocks.
"""

from typing import NamedTuple

import numpy as np

from kernrec.ptx.ir.program import Function, Instruction
from kernrec.ptx.state.access import Access
from kernrec.ptx.state.batch import WARP, Lanes
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.region import Region
from kernrec.ptx.state.selection import Selection
from kernrec.ptx.state.types import Array
from kernrec.ptx.state.vector_clocks import VectorClocks, merged

_WORD = 4
_WIDE = frozenset({"gpu", "sys"})
_RELEASES, _ACQUIRES = frozenset({"release", "acq_rel"}), frozenset({"acquire", "acq_rel"})
_STRONG = _RELEASES | _ACQUIRES | {"relaxed", "volatile"}
_NOBODY = -1

_Past = dict[int, Array]
"""Knowledge of the warps of earlier batches, by batch."""


def hands_over(function: Function) -> bool:
    """Whether blocks of a kernel order what they do in global memory by accesses that release and acquire.

    Fences order accesses, too, but of any later access: kernels that have them are not looked at.
    """
    return any(map(_orders, function.instructions)) and not any(map(_fences, function.instructions))


def _orders(ins: Instruction) -> bool:
    marks = set(ins.modifiers)
    return ins.opcode in ("ld", "st", "atom", "red") and bool(marks & _WIDE and marks & (_RELEASES | _ACQUIRES))


def _fences(ins: Instruction) -> bool:
    wide = {"gl", "sys", "gpu"} & set(ins.modifiers)
    return bool(wide) and (ins.opcode == "membar" or (ins.opcode == "fence" and "proxy" not in ins.modifiers))


class _Release(NamedTuple):
    """The knowledge that a release at a word of global memory passes on to those who acquire it."""

    batch: int
    """In which it was made."""

    row: Array
    """Of its warp: how far it knew the warps of that batch."""

    past: _Past
    """The same of earlier ones."""


class _Words(NamedTuple):
    """The last writers of the words of a buffer."""

    warp: Array
    """In its batch; `_NOBODY`: none."""

    batch: Array

    time: Array
    """By the clock of the warp."""


class Handovers:
    """Who wrote each word of global memory, and who knows of it."""

    def __init__(self, lanes: Lanes, clocks: VectorClocks) -> None:
        self._lanes = lanes
        self._clocks = clocks
        self._batch = 0
        self._words: dict[str, _Words] = {}
        self._releases: dict[tuple[str, int], _Release] = {}  # by buffer and byte
        self._before: dict[tuple[str, int], Array] = {}  # by buffer and byte: what was there before the last release
        self._looked: set[tuple[int, int, str, int]] = set()  # batch, warp, buffer, byte: looked since
        self._past: list[_Past] = []  # by block of this batch
        self._blocks: list[Array] = []  # of every batch: the numbers of its blocks

    def start_batch(self) -> None:
        """A batch of blocks begins, which know of none before."""
        self._batch = len(self._blocks)
        self._blocks.append(self._lanes.block_numbers.copy())
        self._past = [{} for _ in range(self._lanes.shape.blocks)]

    def keep(self, access: Access, region: Region, selection: Selection) -> None:
        """Lanes are about to store: keeps what was there before a release."""
        if _RELEASES & set(access.ins.modifiers):
            _, places = self._places(access, region, selection)
            for place in np.unique(places).tolist():
                self._before[region.name, place] = region.bytes[place : place + access.size].copy()
                self._looked = {look for look in self._looked if look[2:] != (region.name, place)}

    def overlooked(self, access: Access, region: Region, selection: Selection) -> list[tuple[int, Array]]:
        """Lanes that load with acquire, by position in the selection, and do not see the last release yet; with the
        bytes that they see."""
        late: list[tuple[int, Array]] = []
        if not _ACQUIRES & set(access.ins.modifiers):
            return late
        lanes, places = self._places(access, region, selection)
        for position, (lane, place) in enumerate(zip(lanes.tolist(), places.tolist(), strict=True)):
            before = self._before.get((region.name, place))
            if before is not None and (self._batch, lane // WARP, region.name, place) not in self._looked:
                late.append((position, before))
        return late

    def record(self, access: Access, region: Region, selection: Selection, write: bool, atomic: bool = False) -> None:
        """Lanes access a buffer that may be written.

        Raises:
            EmulationError: the access is part of a race; the message names both sides.
        """
        marks = set(access.ins.modifiers)
        lanes, places = self._places(access, region, selection)
        warps = lanes // WARP
        if atomic or marks & _STRONG:
            met = sorted({*zip(warps.tolist(), places.tolist(), strict=True)}) if marks & _WIDE else []
            for warp, place in met:
                look = (self._batch, warp, region.name, place)
                if marks & _ACQUIRES and (atomic or look in self._looked or (region.name, place) not in self._before):
                    self._acquire(warp, (region.name, place))
                self._looked.add(look)
                if marks & _RELEASES:
                    self._release(warp, (region.name, place), atomic)
        elif access.size >= _WORD:
            self._record_words(
                access, region, (places // _WORD)[:, None] + np.arange(access.size // _WORD), warps, write
            )

    def _places(self, access: Access, region: Region, selection: Selection) -> tuple[Array, Array]:
        """(lanes of a selection, the byte of the region that each accesses)."""
        index, shift = selection.index(region, 1, access.offset)
        return self._lanes.shape.numbers if selection.lanes is None else selection.lanes, index + shift

    def _record_words(self, access: Access, region: Region, words: Array, warps: Array, write: bool) -> None:
        last = self._words.get(region.name)
        if last is None:
            size = -(-region.size // _WORD)
            last = _Words(np.full(size, _NOBODY, np.int32), np.zeros(size, np.int32), np.zeros(size, np.int32))
            self._words[region.name] = last
        writer, batch, time = (column[words] for column in last)
        seen, each = self._clocks.seen, warps[:, None]
        if (writer != _NOBODY).any():
            unknown = (writer != _NOBODY) & (batch == self._batch) & (time > seen[each, writer])
            before = (writer != _NOBODY) & (batch != self._batch)
            if before.any():
                unknown |= before & ~self._known_before(warps // self._warps_per_block, _Words(writer, batch, time))
            if unknown.any():
                row, column = (int(i) for i in np.argwhere(unknown)[0])
                self._fail(access, region, int(words[row, column]), int(warps[row]), write)
        if write:
            last.warp[words], last.batch[words], last.time[words] = each, self._batch, seen[each, each]

    def _known_before(self, blocks: Array, last: _Words) -> Array:
        """Whether these blocks, one for each row, know of what was written in earlier batches."""
        seen = np.zeros(last.warp.shape, np.bool_)
        for block in np.unique(blocks).tolist():
            for batch, row in self._past[block].items():
                mine = (blocks == block)[:, None] & (last.batch == batch)
                seen[mine] = last.time[mine] <= row[last.warp[mine]]
        return seen

    @property
    def _warps_per_block(self) -> int:
        return self._lanes.shape.lanes_per_block // WARP

    def _release(self, warp: int, place: tuple[str, int], atomic: bool) -> None:
        release = _Release(self._batch, self._clocks.snapshot(warp), dict(self._past[warp // self._warps_per_block]))
        before = self._releases.get(place) if atomic else None  # one atomic operation goes on what the last released
        if before is not None:
            _learn(release.past, before.past)
            if before.batch == release.batch:
                release = release._replace(row=merged(release.row, before.row))
            else:
                _learn(release.past, {before.batch: before.row})
        self._releases[place] = release

    def _acquire(self, warp: int, place: tuple[str, int]) -> None:
        release = self._releases.get(place)
        if release is None:
            return
        past = self._past[warp // self._warps_per_block]
        _learn(past, release.past)
        if release.batch == self._batch:
            self._clocks.learn(warp, release.row)
        else:
            _learn(past, {release.batch: release.row})

    def _fail(self, access: Access, region: Region, word: int, warp: int, write: bool) -> None:
        """Raises for an access of a warp to a word."""
        last, each = self._words[region.name], self._warps_per_block
        other = int(last.warp[word])
        block = int(self._lanes.block_numbers[warp // each])
        other_block = int(self._blocks[int(last.batch[word])][other // each])
        raise EmulationError(
            f"{access.location}: race: warp {warp % each} of block number {block} {'writes' if write else 'reads'} byte"
            f" {word * _WORD} of {region.name}, which warp {other % each} of block number {other_block} wrote with no"
            " release and acquire between"
        )


def _learn(past: _Past, more: _Past) -> None:
    for batch, row in more.items():
        past[batch] = merged(past[batch], row) if batch in past else row
