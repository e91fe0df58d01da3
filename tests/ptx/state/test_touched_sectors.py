"""What blocks touch, and what the next one adds."""

import numpy as np
import pytest

from kernrec.ptx.state.touched_sectors import Touched


def bytes_of(first: int, size: int, rows: int = 1, pitch: int = 1 << 16) -> Touched:
    """`rows` rows of `size` bytes from byte `first` on."""
    starts = first + pitch * np.arange(rows)
    return Touched(np.concatenate([np.arange(start // 4, (start + size) // 4) for start in starts]))


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
