"""Define textures and surfaces: images in global memory, and how fetches map coordinates to texels.

The rules are those of the CUDA C++ Programming Guide, appendix "Texture Fetching", and of the PTX ISA, section 9.7.10.
Weights of linear filters have 9 bits, 8 of them fractional. `wrap` and `mirror` need normalized coordinates; others are
clamped or have a border. Filters do not cross the edges of cube faces. A missing channel reads as 0.

An image is dense in its buffer: x fastest, with a texel's channels together. Layers (including the six faces of a cube)
follow one another, then levels of detail, each half as large as the last. Accesses, however, are counted as if 2-D
images had the hardware's layout: blocks of 64 bytes x 8 rows, with sectors of 16 bytes x 2 rows (NVIDIA's block linear
layout, `drm_fourcc.h` of the Linux kernel).
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
"""NumPy type by element type."""


@dataclass(frozen=True)
class Sampler:
    """How fetches read a texture."""

    filter: str = "point"
    """Filter, `point` or `linear`."""
    address: str = "clamp"
    """Handling of coordinates outside the image: `wrap`, `clamp`, `mirror` or `border` (zeros)."""
    normalized: bool = False
    """Whether coordinates from 0 to 1 span the image."""
    unit_range: bool = False
    """Whether integers are read as fractions from 0 (signed: -1) to 1."""

    def __post_init__(self) -> None:
        for kind, name, accepted in (("filter", self.filter, FILTERS), ("address mode", self.address, ADDRESSES)):
            if name not in accepted:
                raise unknown(kind, name, accepted)


@dataclass(frozen=True)
class Image:
    """Texture or surface over a buffer."""

    buffer: str
    """Buffer of the image."""
    extents: tuple[int, ...]
    """Texels along x, y and z: one to three extents."""
    element: str = "f32"
    """Type of a channel, a key of `ELEMENTS`."""
    channels: int = 1
    """Number of channels: 1, 2 or 4."""
    layers: int = 1
    """Number of images; 6 for a cube, and 6 per layer for layered cubes."""
    levels: int = 1
    sampler: Sampler = Sampler()
    """How fetches read the texture; unused for surfaces."""

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
            raise UsageError(f"{self.layers} layers and {self.levels} levels; expected at least 1")

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """NumPy type of a channel."""
        return np.dtype(ELEMENTS[self.element])

    @property
    def texel_bytes(self) -> int:
        """Bytes of all channels of a texel."""
        return self.channels * self.dtype.itemsize

    def extents_at(self, level: int) -> tuple[int, int, int]:
        """Return the texels along x, y and z of a level of detail."""
        x, y, z = (max(extent >> level, 1) for extent in (*self.extents, 1, 1)[:3])
        return x, y, z

    def first_texel(self, level: int) -> int:
        """Return the number of texels before a level of detail."""
        return sum(int(np.prod(self.extents_at(i))) * self.layers for i in range(level))

    @property
    def bytes(self) -> int:
        """Bytes of the whole image in its buffer."""
        return self.first_texel(self.levels) * self.texel_bytes
