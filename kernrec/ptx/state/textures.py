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

from functools import cached_property

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.util.light_dataclass import dataclass

FILTERS = ("point", "linear")
ADDRESSES = ("wrap", "clamp", "mirror", "border")
ELEMENTS = {
    "f32": "f4", "f16": "f2", "u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4",
}  # fmt: skip
"""By element type: the NumPy type."""


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
