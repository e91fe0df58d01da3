"""Descriptors of matrices in shared memory: laws that hold for every one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.ptx.state.matrix_descriptors import DescriptorError, tcgen05_descriptor, tile_addresses, wgmma_descriptor
from tests.helpers.depth import few_examples
from tests.helpers.matrix_tiles import WGMMA_MODES, Tile, packed

ROWS = st.sampled_from(sorted(WGMMA_MODES))
SIZES = st.sampled_from([1, 2, 4])


@few_examples(40)
@given(row=ROWS, size=SIZES, extent=st.sampled_from([8, 24, 64]), mn_major=st.booleans(), start=st.integers(0, 8))
def test_a_packed_tile_has_each_of_its_bytes_once(row: int, size: int, extent: int, mn_major: bool, start: int) -> None:
    whole = extent + -extent % (row // size) if mn_major else extent
    tile = packed(1024 * start, row, whole, size, mn_major)
    addresses = tile_addresses(wgmma_descriptor(tile.wgmma), whole, 32 // size, size, mn_major)
    assert len(np.unique(addresses)) == addresses.size
    assert addresses.min() >= tile.start
    if mn_major or row <= 32:
        assert addresses.max() < tile.start + 32 * whole
    assert np.array_equal(
        addresses, tile_addresses(tcgen05_descriptor(tile.tcgen05), whole, 32 // size, size, mn_major)
    )


@few_examples(40)
@given(row=ROWS, step=st.integers(0, 3), size=SIZES)
def test_steps_along_k_within_a_row_move_the_start(row: int, step: int, size: int) -> None:
    """What kernels do: a row of 128 bytes is read 32 bytes at a time, by four descriptors that differ in the start."""
    if 32 * (step + 1) > row:
        return
    tile = Tile(2048, row, 16, 8 * row)
    all_of_it = tile_addresses(wgmma_descriptor(tile.wgmma), 16, row // size, size)
    part = tile_addresses(wgmma_descriptor(tile._replace(start=2048 + 32 * step).wgmma), 16, 32 // size, size)
    assert np.array_equal(part, all_of_it[:, step * 32 // size : (step + 1) * 32 // size])


@few_examples(40)
@given(row=st.sampled_from([32, 64, 128]), lines=st.integers(0, 7))
def test_a_pattern_may_begin_where_the_base_offset_says(row: int, lines: int) -> None:
    aligned = Tile(4096, row, 16, 8 * row)
    moved = aligned._replace(start=4096 + 128 * lines)
    at_base = tile_addresses(wgmma_descriptor(aligned.wgmma), 16, 16, 2)
    offset = tile_addresses(wgmma_descriptor(moved.wgmma | lines << 49), 16, 16, 2)
    if row == 128 or lines % (row // 16) == 0:
        assert np.array_equal(np.sort(offset - 128 * lines, None), np.sort(at_base, None))
    assert np.array_equal(offset[0], at_base[0] + 128 * lines)


@given(bits=st.integers(0, (1 << 64) - 1))
def test_bits_are_a_descriptor_or_an_error(bits: int) -> None:
    for decode in (wgmma_descriptor, tcgen05_descriptor):
        try:
            descriptor = decode(bits)
        except DescriptorError:
            continue
        assert descriptor.start == (bits & 0x3FFF) << 4


def test_pieces_of_32_bytes_are_moved_in_patterns_of_four_rows() -> None:
    descriptor = tcgen05_descriptor(1 << 46 | 1 << 61 | 1024 >> 4 << 16 | 512 >> 4 << 32)
    addresses = tile_addresses(descriptor, 32, 8, 4, mn_major=True)
    for k in range(8):
        assert addresses[0, k] == k // 4 * 512 + k % 4 * 128 + k % 4 * 32
        assert np.array_equal(np.diff(addresses[:8, k]), [4] * 7)


def test_an_address_as_leading_offset_is_refused() -> None:
    with pytest.raises(DescriptorError, match="is an address: not supported"):
        tcgen05_descriptor(1 << 46 | 1 << 52)
