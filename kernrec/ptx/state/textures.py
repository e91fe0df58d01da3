"""Textures and surfaces: images in global memory, how a coordinate finds its texels, and what a fetch returns.

The rules are those of the CUDA C++ Programming Guide, appendix "Texture Fetching", and of the PTX ISA, section 9.7.10:
a linear filter weighs with fractions of 9 bits, 8 of them behind the point; coordinates that are not normalized are
clamped or have a border; `wrap` and `mirror` need normalized ones. The faces of a cube are filtered each by itself. A
channel that an image does not have reads as 0.

An image lies in its buffer densely, x fastest, the channels of a texel together; layers (the six faces of a cube are
layers too) one after the other, levels of detail (each half as large as the one before) after that. Accesses
are *counted* where the hardware keeps a 2-D image: in blocks of 64 bytes x 8 rows, whose sectors are 16 bytes x 2 rows
(NVIDIA's block linear layout, `drm_fourcc.h` of the Linux kernel).
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import product

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.ptx.state.types import Array
from kernrec.util.light_dataclass import dataclass

FILTERS = ("point", "linear")
ADDRESSES = ("wrap", "clamp", "mirror", "border")
ELEMENTS = {
    "f32": "f4", "f16": "f2", "u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4",
}  # fmt: skip
"""By element type: the NumPy type."""
_FURTHEST = float(1 << 40)  # a coordinate beyond it is as good as there


@dataclass(frozen=True)
class Sampler:
    """How a texture is read."""

    filter: str = "point"
    """`point` or `linear`."""

    address: str = "clamp"
    """Of a coordinate outside: `wrap`, `clamp`, `mirror` or `border` (zeros)."""

    normalized: bool = False
    """Whether coordinates go from 0 to 1 over the image."""

    unit_range: bool = False
    """Whether integers are read as numbers from 0 (signed ones: -1) to 1."""

    def __post_init__(self) -> None:
        for kind, name, accepted in (("filter", self.filter, FILTERS), ("address mode", self.address, ADDRESSES)):
            if name not in accepted:
                raise unknown(kind, name, accepted)


@dataclass(frozen=True)
class Image:
    """A texture or surface over a buffer."""

    buffer: str
    """The buffer that it lies in."""

    extents: tuple[int, ...]
    """Texels along x, y and z: one to three extents."""

    element: str = "f32"
    """Type of a channel: a key of `ELEMENTS`."""

    channels: int = 1
    """1, 2 or 4."""

    layers: int = 1
    """How many images; of a cube 6, of layered cubes 6 each."""

    levels: int = 1

    sampler: Sampler = Sampler()
    """How it is read as a texture; surfaces have none."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.extents) <= 3 or any(extent < 1 for extent in self.extents):
            raise UsageError(f"an image of {self.extents} texels: one to three positive extents are expected")
        if self.element not in ELEMENTS:
            raise unknown("element type of a texture", self.element, ELEMENTS)
        if self.channels not in (1, 2, 4):
            raise UsageError(f"an image of {self.channels} channels: 1, 2 or 4 are expected")
        if self.sampler.filter == "linear" and self.dtype.kind != "f" and not self.sampler.unit_range:
            raise UsageError("a linear filter needs floating-point texels, or integers that are read as 0 to 1")
        if self.layers < 1 or self.levels < 1:
            raise UsageError(f"{self.layers} layers and {self.levels} levels: at least 1 is accepted")

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """Of a channel."""
        return np.dtype(ELEMENTS[self.element])

    @property
    def texel_bytes(self) -> int:
        """Of all channels."""
        return self.channels * self.dtype.itemsize

    def extents_at(self, level: int) -> tuple[int, int, int]:
        """Texels along x, y and z of a level of detail."""
        x, y, z = (max(extent >> level, 1) for extent in (*self.extents, 1, 1)[:3])
        return x, y, z

    def first_texel(self, level: int) -> int:
        """Texels before a level of detail."""
        return sum(int(np.prod(self.extents_at(i))) * self.layers for i in range(level))

    @property
    def bytes(self) -> int:
        """Of the whole image in its buffer."""
        return self.first_texel(self.levels) * self.texel_bytes

    def texel(self, coordinates: Sequence[Array], layer: Array | int, level: int) -> Array:
        """Number of a texel in the buffer, by its whole coordinates."""
        width, height, depth = self.extents_at(level)
        zero = np.zeros_like(coordinates[0])
        x, y, z = [*coordinates, zero, zero][:3]
        number: Array = self.first_texel(level) + ((layer * depth + z) * height + y) * width + x
        return number

    def stored_at(self, coordinates: Sequence[Array], layer: Array | int, level: int) -> Array:
        """The byte where the hardware keeps a texel, for counting sectors; below `bytes`."""
        if len(self.extents) == 1:
            return self.texel(coordinates, layer, level) * self.texel_bytes
        width, height, depth = self.extents_at(level)
        x, y, z = [*coordinates, np.zeros_like(coordinates[0])][:3]
        column = x * self.texel_bytes
        across, down = -(-width * self.texel_bytes // 64), -(-height // 8)
        block = ((layer * depth + z) * down + y // 8) * across + column // 64
        inside = column % 64 // 32 * 256 + y % 8 // 2 * 64 + column % 32 // 16 * 32 + y % 2 * 16 + column % 16
        stored: Array = (self.first_texel(level) * self.texel_bytes + block * 512 + inside) % self.bytes
        return stored


@dataclass(frozen=True)
class Corner:
    """One of the texels that a fetch reads."""

    coordinates: list[Array]
    """Whole coordinates, inside of the image."""

    inside: Array
    """Whether there is a texel; else it reads as the border."""

    weight: Array | float
    """Its share of the result."""


def corners(image: Image, level: int, coordinates: Sequence[Array], linear: bool, whole: bool) -> list[Corner]:
    """The texels that make a fetch at some coordinates, x first.

    `whole`: the coordinates are numbers of texels; outside of the image there is none.
    """
    axes: list[list[tuple[Array, Array, Array | float]]] = []
    for numbers, extent in zip(coordinates, image.extents_at(level), strict=False):
        if whole:
            index = numbers.astype(np.int64)
            axes.append([(np.clip(index, 0, extent - 1), (index >= 0) & (index < extent), 1.0)])
            continue
        place = np.clip(np.nan_to_num(numbers.astype(np.float64)), -_FURTHEST, _FURTHEST)
        if image.sampler.normalized:
            place = np.clip(place * extent, -_FURTHEST, _FURTHEST)
        if not linear:
            axes.append([(*_addressed(image, np.floor(place).astype(np.int64), extent), 1.0)])
            continue
        first = np.floor(place - 0.5)
        share = np.floor((place - 0.5 - first) * 256.0 + 0.5) / 256.0  # 8 bits behind the point
        index = first.astype(np.int64)
        axes.append(
            [
                (*_addressed(image, index, extent), 1.0 - share),
                (*_addressed(image, index + 1, extent), share),
            ]
        )
    made = []
    for parts in product(*axes):
        inside = np.logical_and.reduce([part[1] for part in parts])
        weight: Array | float = 1.0
        for part in parts:
            weight = weight * part[2]
        made.append(Corner([part[0] for part in parts], inside, weight))
    return made


def _addressed(image: Image, index: Array, extent: int) -> tuple[Array, Array]:
    """The texel that a number along an axis stands for, and whether there is one."""
    mode = image.sampler.address
    if mode in ("wrap", "mirror") and not image.sampler.normalized:
        mode = "clamp"
    if mode == "wrap":
        return index % extent, np.ones(index.shape, np.bool_)
    if mode == "mirror":
        turn = index % (2 * extent)
        return np.where(turn < extent, turn, 2 * extent - 1 - turn), np.ones(index.shape, np.bool_)
    inside = (index >= 0) & (index < extent)
    return np.clip(index, 0, extent - 1), inside if mode == "border" else np.ones(index.shape, np.bool_)


def read_texels(image: Image, data: Array, texel: Array, inside: Array) -> Array:
    """Four channels of texels (texels, 4): as stored, or as numbers up to 1; `data`: bytes of the buffer."""
    whole = data[: image.bytes].view(image.dtype).reshape(-1, image.channels)
    values = np.where(inside[:, None], whole[texel], image.dtype.type(0))
    if image.sampler.unit_range and image.dtype.kind != "f":
        values = np.maximum(values.astype(np.float64) / np.iinfo(image.dtype.name).max, -1.0)
    elif image.dtype.kind == "f":
        values = values.astype(np.float64)
    else:
        values = values.astype(np.int64)
    if image.channels < 4:
        values = np.concatenate([values, np.zeros((len(values), 4 - image.channels), values.dtype)], axis=1)
    return values


def cube_face(x: Array, y: Array, z: Array) -> tuple[Array, Array, Array]:
    """Face of a cube that a direction points to, and coordinates from 0 to 1 on it (appendix "Cubemap Textures")."""
    size = np.abs(np.stack([x, y, z]).astype(np.float64))
    axis = np.where((size[0] >= size[1]) & (size[0] >= size[2]), 0, np.where(size[1] >= size[2], 1, 2))
    along = np.choose(axis, [x, y, z])
    back = along < 0
    side = np.where(back, -1.0, 1.0)
    s = np.choose(axis, [-side * z, x, side * x])
    t = np.choose(axis, [-y, side * z, -y])
    length = np.where(along == 0, 1.0, np.abs(along))
    return 2 * axis + back, (s / length + 1) / 2, (t / length + 1) / 2
