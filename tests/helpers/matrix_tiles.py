"""Writes matrices into images of shared memory, in the layouts that the PTX manual defines."""

from typing import NamedTuple

import numpy as np

from kernrec.util.small_floats import small_codes, small_values
from tests.helpers.narrow_floats import bf16_bits, bf16_values

RNG = np.random.default_rng(1)
WGMMA_MODES = {16: 0, 128: 1, 64: 2, 32: 3}  # maps bytes of a row to descriptor bits 62 and 63
TCGEN05_MODES = {16: 0, 128: 2, 64: 4, 32: 6}  # maps bytes of a row to descriptor bits 61 to 63


class Tile(NamedTuple):
    """Layout of a tile: start address, bytes of a row, leading and stride offset, and whether rows run along M or N."""

    start: int
    row: int
    leading: int
    stride: int
    mn_major: bool = False

    @property
    def wgmma(self) -> int:
        return self._common | WGMMA_MODES[self.row] << 62

    @property
    def tcgen05(self) -> int:
        return self._common | 1 << 46 | TCGEN05_MODES[self.row] << 61

    @property
    def _common(self) -> int:
        return self.start >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32


def swizzled(address: int, row: int) -> int:
    """Return the swizzled address: the number of the 128-byte line permutes the row's 16-byte pieces."""
    return address ^ ((address // 128) % (row // 16)) * 16


def store(image: np.ndarray, tile: Tile, matrix: np.ndarray) -> None:
    size, elements = matrix.dtype.itemsize, image.view(matrix.dtype)
    for (i, k), value in np.ndenumerate(matrix):
        if tile.mn_major:
            byte, line = i * size, k
            piece, rest = divmod(byte, tile.row)
            far = (tile.stride, tile.leading) if tile.row == 16 else (tile.leading, tile.stride)
        else:
            byte, line = k * size, i
            piece, rest = divmod(byte, tile.row)
            far = (tile.leading, tile.stride)
        address = tile.start + piece * far[0] + rest + line % 8 * tile.row + line // 8 * far[1]
        elements[swizzled(address, tile.row) // size] = value


SIZES = {"f16": 2, "bf16": 2, "tf32": 4}  # bytes of an element, 1 for types not listed


def random_bits(kind: str, shape: tuple[int, int]) -> np.ndarray:
    """Return the stored form of a random matrix of small numbers, whose products are exact."""
    small = RNG.integers(-4, 5, shape).astype(np.float32)
    if kind in ("s8", "u8"):
        return RNG.integers(0, 256, shape).astype("i1" if kind == "s8" else "u1")
    if kind in ("e4m3", "e5m2"):
        return small_codes("f8" + kind, small / 2)
    return bf16_bits(small) if kind == "bf16" else small.astype("f2" if kind == "f16" else "f4")


def numbers(kind: str, bits: np.ndarray) -> np.ndarray:
    if kind in ("e4m3", "e5m2"):
        return small_values("f8" + kind, bits).astype(np.float64)
    return (bf16_values(bits) if kind == "bf16" else bits).astype(np.float64)


def packed(start: int, row: int, extent: int, size: int, mn_major: bool) -> Tile:
    """Return a tile of 32 bytes along K without gaps."""
    depth = 32 // size
    if not mn_major:
        return Tile(start, row, 16 * extent if row == 16 else 16, 8 * row)
    return Tile(start, row, 128, 16 * depth, True) if row == 16 else Tile(start, row, row * depth, 8 * row, True)
