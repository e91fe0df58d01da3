"""Describe arguments through which a kernel accesses a tensor without a pointer: tensor maps, textures and surfaces.

A tensor map describes the memory of a tensor, and the box of elements that one copy instruction moves. The CUDA driver
encodes tensor maps (CUDA Driver API, `cuTensorMapEncodeTiled`). In a spec, the argument `map a: block_k, block_m, 1` is
a map of the tensor `a`, whose boxes have these extents, contiguous axis first. If a box has more axes than the tensor,
its extent along the additional axes is 1. A row of the box has 32, 64 or 128 bytes; the swizzle permutes pieces within
a row.
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

from kernrec.errors import KernrecError, UsageError
from kernrec.kernel.expression import Expression
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.op.problem import Tensor
from kernrec.util.light_dataclass import dataclass

MAP_BYTES = 128
MAP_ALIGNMENT = 64
SWIZZLES = {32: 1, 64: 2, 128: 3}
"""Number of the swizzle mode in `CUtensorMapSwizzle`, keyed by the size of a row of the box in bytes."""
ELEMENT_TYPES = {
    "u8": 0, "i8": 0, "f8e4m3": 0, "f8e5m2": 0, "u16": 1, "i16": 1, "u32": 2, "i32": 3, "u64": 4, "i64": 5, "f16": 6,
    "f32": 7, "tf32": 7, "f64": 8, "bf16": 9,
}  # fmt: skip
"""Number of the element type in `CUtensorMapDataType`, keyed by dtype. Dtypes without an equivalent are copied as
bytes."""


@dataclass(frozen=True)
class MapArgument:
    """Argument of a launch that is a tensor map."""

    name: str
    box: tuple[Expression, ...]
    """Number of elements of a box along each axis, contiguous axis first."""


@dataclass(frozen=True)
class MapHandle:
    """Tensor map of a bound launch, in which all expressions are replaced by their values. Its axes are those of the
    box, contiguous axis first.
    """

    name: str
    dtype: str
    extents: tuple[int, ...]
    """Number of elements along each axis."""
    strides: tuple[int, ...]
    """Distance in bytes between neighboring elements along the second and each further axis."""
    box: tuple[int, ...]
    """Number of elements of a box along each axis."""

    @property
    def swizzle(self) -> int:
        """Return the size of a row of the box in bytes, which determines the swizzle mode. The swizzle permutes 16-byte
        pieces within a row.
        """
        return self.box[0] * ELEMENT_BYTES[self.dtype]


def map_of(tensor: Tensor, box: tuple[int, ...]) -> MapHandle:
    """Return the tensor map of a tensor. Raises `UsageError` if the tensor has more axes than the box, or if a tensor
    map cannot describe the tensor.
    """
    extents = tuple(reversed(tensor.shape))
    if len(extents) > len(box):
        raise UsageError(f"map {tensor.name}: the box has {len(box)} extents, but the tensor has {len(extents)} axes")
    extents += (1,) * (len(box) - len(extents))
    strides, size = [], ELEMENT_BYTES[tensor.dtype]
    for extent in extents[:-1]:
        size *= extent
        strides.append(size)
    handle = MapHandle(tensor.name, tensor.dtype, extents, tuple(strides), box)
    if handle.swizzle not in SWIZZLES:
        accepted = ", ".join(map(str, SWIZZLES))
        raise UsageError(f"map {tensor.name}: a row of the box has {handle.swizzle} bytes; expected {accepted}")
    if any(stride % 16 for stride in strides) or not all(1 <= extent <= 256 for extent in box):
        raise UsageError(
            f"map {tensor.name}: strides are {', '.join(map(str, strides))} bytes and the box {box}; expected "
            f"multiples of 16 bytes, and 1 to 256 elements"
        )
    return handle


class EncodedMap:
    """Tensor map in the driver's encoding. It is encoded again whenever the tensor's address changes."""

    def __init__(self, handle: MapHandle) -> None:
        self._handle = handle
        self._memory = (ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT))()
        self.address = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        """Address of the encoded map."""
        self._value = 0

    @property
    def value(self) -> int:
        """Return the address of the tensor that the map describes."""
        return self._value

    @value.setter
    def value(self, address: int) -> None:
        if address != self._value:
            encode(self._handle, address, self.address)
            self._value = address


def encode(handle: MapHandle, address: int, target: int) -> None:
    """Write the encoded map of a tensor at `address` to 128 bytes at `target`. Raises `KernrecError` on failure."""
    rank = len(handle.extents)
    long, word = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
    result = _encoder()(
        ctypes.c_void_p(target), ELEMENT_TYPES[handle.dtype], rank, ctypes.c_void_p(address), long(*handle.extents),
        long(*handle.strides), word(*handle.box), word(*(1,) * rank), 0, SWIZZLES[handle.swizzle], 2, 0,
    )  # fmt: skip
    if result:
        raise KernrecError(f"the driver cannot encode the tensor map of {handle.name}: error {result}")


@lru_cache(maxsize=1)
def _encoder() -> Any:
    try:
        function = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise KernrecError(f"launching this kernel needs a driver that encodes tensor maps: {error}") from None
    function.restype = ctypes.c_int
    return function


@dataclass(frozen=True)
class ImageLayout:
    """How a kernel reads a tensor as a texture or surface. The tensor has the axes (layers, z, y, x, channels)."""

    axes: int | None = None
    """Number of axes of the image, 1 to 3. None stands for all axes of the tensor except the channels."""
    channels: int = 1
    """Number of channels of a texel: 1, 2 or 4. If there are 2 or 4, the channels are the last axis of the tensor."""
    filter: str = "point"
    """Filter of a texture: `point` or `linear`."""
    address: str = "clamp"
    """How coordinates outside of the image are handled: `wrap`, `clamp`, `mirror` or `border`."""
    normalized: bool = False
    """Whether coordinates from 0 to 1 span the image."""
    unit_range: bool = False
    """Whether integer texels are read as fractions from 0 to 1, or from -1 to 1 if they are signed."""

    def image_of(self, name: str, shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Return (extents, layers): the extents of the image that represents the tensor `name`, x first, and its number
        of layers. Raises `UsageError` if a tensor of this shape cannot be such an image.
        """
        rest = list(shape)
        if self.channels > 1 and (len(rest) < 2 or rest.pop() != self.channels):
            raise UsageError(f"texture {name}: the last extent of {tuple(shape)} must be {self.channels}, its channels")
        axes = min(len(rest), 3) if self.axes is None else self.axes
        if not 1 <= axes <= min(3, len(rest)):
            raise UsageError(f"texture {name}: a tensor of {tuple(shape)} cannot have {axes} axes; 1 to 3 are accepted")
        return tuple(reversed(rest[-axes:])), prod(rest[:-axes])


@dataclass(frozen=True)
class ImageArgument:
    """Argument of a launch that is a handle of a texture or surface."""

    name: str


@dataclass(frozen=True)
class ImageHandle:
    """Texture or surface of a bound launch, with the extents of its image."""

    name: str
    dtype: str
    extents: tuple[int, ...]
    """Number of texels along x, y and z."""
    layers: int
    """Number of layers. A cube has 6."""
    layout: ImageLayout
