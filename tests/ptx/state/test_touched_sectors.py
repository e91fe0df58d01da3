"""What blocks touch, and what the next one adds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.ptx.state.access_cost import AccessPattern
from kernrec.ptx.state.touched_sectors import Touched, TouchedSectors


def bytes_of(first: int, size: int, rows: int = 1, pitch: int = 1 << 16) -> Touched:
    """`rows` rows of `size` bytes from byte `first` on."""
    starts = first + pitch * np.arange(rows)
    marks = np.zeros(1 << 19, np.bool_)
    for start in starts:
        marks[start // 4 : (start + size) // 4] = True
    return Touched(marks, 0, True)


@pytest.mark.parametrize("place", range(4))
def test_a_tile_moves_its_own_bytes_wherever_its_sectors_begin(place: int) -> None:
    first, following = bytes_of(24 * place, 24, 8), bytes_of(24 * (place + 1), 24, 8)
    assert first.new_bytes(following) == 24 * 8
    assert following.new_bytes(first) == 24 * 8


def test_bytes_elsewhere_move_with_their_sectors() -> None:
    assert bytes_of(0, 8).new_bytes(bytes_of(4096, 8)) == 32
    assert bytes_of(0, 64, 16).new_bytes(bytes_of(64, 64, 16)) == 64 * 16


def test_a_halo_adds_what_is_beyond_it() -> None:
    assert bytes_of(0, 160).new_bytes(bytes_of(128, 160)) == 128
    assert bytes_of(0, 160).new_bytes(bytes_of(0, 160)) == 0


class Image:
    """A buffer of 2^20 bytes."""

    name, size = "image", 1 << 20


@given(st.lists(st.tuples(st.integers(0, 2**18 - 33), st.sampled_from(["read", "write", "atomic"])), max_size=12))
def test_each_block_touched_what_its_lanes_accessed_wherever_that_is(accesses: list[tuple[int, str]]) -> None:
    touched = TouchedSectors([7, 5])
    touched.start_batch([5, 6, 7], warps=1)
    relative = np.repeat([0, 4, 64], 32) + 4 * np.tile(np.arange(32) // 2, 3)
    pattern = AccessPattern(relative, None, 96)
    expected: dict[tuple[bool, int], set[int]] = {}
    for word, kind in accesses:
        touched.record_pattern(Image, 4, pattern, (4 * word,), kind)
        touched.record(Image, 8, np.array([2]), np.array([4 * word & ~7]), kind)
        for written in (False, True) if kind == "atomic" else (kind == "write",):
            for block, first in ((5, word), (7, word + 16)):
                expected.setdefault((written, block), set()).update(range(first, first + 16))
            expected[written, 7] |= {word & ~1, word | 1}
    for written in (False, True):
        blocks = touched.by_block(written).get("image", {})
        assert {(written, block): {*part.words.tolist()} for block, part in blocks.items()} == {
            key: words for key, words in expected.items() if key[0] == written
        }
