"""Define textures, surfaces and tensor maps.

The rules are from the CUDA C++ Programming Guide, appendix "Texture Fetching", and the PTX ISA, section 9.7.10. Weights
of linear filters have 9 bits, 8 of which are fractional. Without normalized coordinates, the address modes `wrap` and
`mirror` act like `clamp`. Filters do not cross the edges of cube faces. Missing channels are read as 0.

A buffer stores an image densely: channels, then x, y, z, then layers or cube faces, then the next level of detail,
which is half as large. Memory accesses to 2-D images are counted as if they had the hardware's layout: blocks of 64
bytes x 8 rows, with sectors of 16 bytes x 2 rows (NVIDIA's block linear layout, `drm_fourcc.h` of the Linux kernel).
"""

import struct
from functools import cached_property

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.util.engine import module
from kernrec.util.light_dataclass import dataclass

FILTERS = ("point", "linear")
ADDRESSES = ("wrap", "clamp", "mirror", "border")
ELEMENTS = {
    "f32": "f4", "f16": "f2", "u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4",
}  # fmt: skip
"""NumPy type of each element type."""


@dataclass(frozen=True)
class Sampler:
    """Rules for reading a texture at given coordinates."""

    filter: str = "point"
    """`point` (nearest texel) or `linear` (interpolation between texels)."""
    address: str = "clamp"
    """Handling of coordinates outside the image: `wrap`, `clamp`, `mirror` or `border` (zeros)."""
    normalized: bool = False
    """Whether coordinates from 0 to 1 span the image."""
    unit_range: bool = False
    """Whether integer texels are read as fractions from 0 to 1, or from -1 to 1 if they are signed."""

    def __post_init__(self) -> None:
        for kind, name, accepted in (("filter", self.filter, FILTERS), ("address mode", self.address, ADDRESSES)):
            if name not in accepted:
                raise unknown(kind, name, accepted)


@dataclass(frozen=True)
class Image:
    """Texture or surface whose texels are stored in a buffer."""

    buffer: str
    extents: tuple[int, ...]
    """Number of texels along one to three axes, x first."""
    element: str = "f32"
    """Element type of a channel, a key of `ELEMENTS`."""
    channels: int = 1
    layers: int = 1
    """Number of layers. Each cube map has 6 layers."""
    levels: int = 1
    sampler: Sampler = Sampler()
    """Sampler for textures. Surfaces do not use it."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.extents) <= 3 or any(extent < 1 for extent in self.extents):
            raise UsageError(f"an image of {self.extents} texels: one to three positive extents are expected")
        if self.element not in ELEMENTS:
            raise unknown("element type of a texture", self.element, ELEMENTS)
        if self.channels not in (1, 2, 4):
            raise UsageError(f"an image of {self.channels} channels: 1, 2 or 4 are expected")
        if self.sampler.filter == "linear" and self.dtype.kind != "f" and not self.sampler.unit_range:
            raise UsageError("a linear filter needs floating-point texels, or integers read as 0 to 1 (unit_range)")
        if self.layers < 1 or self.levels < 1:
            raise UsageError(f"{self.layers} layers and {self.levels} levels; expected at least 1")

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """Return the NumPy type of a channel."""
        return np.dtype(ELEMENTS[self.element])

    @property
    def texel_bytes(self) -> int:
        """Return the bytes of a texel."""
        return self.channels * self.dtype.itemsize

    def extents_at(self, level: int) -> tuple[int, int, int]:
        """Return the number of texels along x, y and z in a level of detail."""
        x, y, z = (max(extent >> level, 1) for extent in (*self.extents, 1, 1)[:3])
        return x, y, z

    @property
    def bytes(self) -> int:
        """Return the bytes of the image with all layers and levels of detail."""
        texels = sum(int(np.prod(self.extents_at(level))) for level in range(self.levels))
        return texels * self.layers * self.texel_bytes


MAP_BYTES = 128
_LAYOUT = struct.Struct("<Q4s5B3x5I4x4Q5H5H")
_MARK = b"tile"
MOST_RANK = 5

ELEMENT_TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32.ftz", "f64", "bf16", "tf32", "tf32.ftz")
"""Element types of tensor maps, indexed by the driver's number."""
_ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)
SWIZZLES = (0, 32, 64, 128)
"""Width of each swizzle mode in bytes, indexed by the driver's number."""


@dataclass(frozen=True)
class TensorMap:
    """Tensor in global memory, and the box of elements that a copy moves. Dimension 0 is contiguous."""

    address: int | str
    """Address of the tensor, a multiple of 16, or the name of a buffer of the launch."""
    type: str
    extents: tuple[int, ...]
    """Number of elements along each of one to five dimensions."""
    strides: tuple[int, ...]
    """Bytes between neighboring elements along each dimension except the first."""
    box: tuple[int, ...]
    """Elements of the box along each dimension, at most 256."""
    swizzle: int = 0
    """Swizzle width in bytes, within which 16-byte pieces are permuted: 0 (none), 32, 64 or 128."""
    element_strides: tuple[int, ...] = ()
    """Element stride along each dimension. If it is empty, the strides are 1."""
    fill_nan: bool = False
    """Whether elements outside the tensor are read as NaN instead of zero."""
    interleave: int = 0
    """Bytes of interleaved channels: 0, 16 or 32. The emulator can copy only tensors with 0."""

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def element_bytes(self) -> int:
        return _ELEMENT_BYTES[ELEMENT_TYPES.index(self.type)]

    @property
    def steps(self) -> tuple[int, ...]:
        return self.element_strides or (1,) * self.rank

    def encode(self, address: int) -> bytes:
        """Return the 128 bytes of the map for a tensor at `address`. Raise `UsageError` if the map is invalid."""
        if self.type not in ELEMENT_TYPES or self.swizzle not in SWIZZLES or self.interleave not in (0, 16, 32):
            raise UsageError(
                f"tensor map of {self.type} with swizzle {self.swizzle}: expected one of {', '.join(ELEMENT_TYPES)},"
                f" and a swizzle of {', '.join(map(str, SWIZZLES))}"
            )
        if not 1 <= self.rank <= MOST_RANK:
            raise UsageError(f"tensor map of {self.address}: rank {self.rank} is not from 1 to {MOST_RANK}")
        numbers = (*_padded(self.extents, 5), *_padded(self.strides, 4), *_padded(self.box, 5), *_padded(self.steps, 5))
        modes = ELEMENT_TYPES.index(self.type), self.interleave // 16, SWIZZLES.index(self.swizzle), int(self.fill_nan)
        head = (address, _MARK, self.rank - 1, *modes)
        try:
            raw = _LAYOUT.pack(*head, *numbers).ljust(MAP_BYTES, b"\0")
            module().check_tensor_map(raw)
        except (struct.error, ValueError) as error:
            raise UsageError(f"tensor map of {self.address}: {error}") from None
        return raw


def _padded(values: tuple[int, ...], length: int) -> tuple[int, ...]:
    return (*values, *(0,) * length)[:length]
