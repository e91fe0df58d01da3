"""Describe arguments that access a tensor without a pointer: tensor maps, textures and surfaces.

A tensor map describes a tensor's memory and the box of elements that one copy instruction moves (CUDA Driver API,
`cuTensorMapEncodeTiled`). In a spec, `map a: block_k, block_m, 1` is a map of the tensor `a` with boxes of these
extents, contiguous axis first. Axes that the tensor lacks have extent 1. A row of the box has 32, 64 or 128 bytes,
within which the swizzle permutes pieces.
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
"""Number in `CUtensorMapSwizzle`, keyed by the bytes in a row of the box."""
ELEMENT_TYPES = {
    "u8": 0, "i8": 0, "f8e4m3": 0, "f8e5m2": 0, "u16": 1, "i16": 1, "u32": 2, "i32": 3, "u64": 4, "i64": 5, "f16": 6,
    "f32": 7, "tf32": 7, "f64": 8, "bf16": 9,
}  # fmt: skip
"""Number of each dtype in `CUtensorMapDataType`. Missing dtypes are copied as bytes."""


@dataclass(frozen=True)
class MapArgument:
    name: str
    box: tuple[Expression, ...]
    """Elements of a box along each axis, contiguous axis first."""


@dataclass(frozen=True)
class MapHandle:
    """Tensor map of a bound launch. The contiguous axis is first."""

    name: str
    dtype: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    """Bytes between neighboring elements along each axis except the first."""
    box: tuple[int, ...]

    @property
    def swizzle(self) -> int:
        """Return the bytes of a row of the box, within which the swizzle permutes 16-byte pieces."""
        return self.box[0] * ELEMENT_BYTES[self.dtype]


def map_of(tensor: Tensor, box: tuple[int, ...]) -> MapHandle:
    """Return the tensor map of a tensor. Raise `UsageError` if the box is not possible."""
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
    """Tensor map in the driver's encoding. It is updated when the tensor's address changes."""

    def __init__(self, handle: MapHandle) -> None:
        self._handle = handle
        self._memory = (ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT))()
        self.address = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        self._value = 0

    @property
    def value(self) -> int:
        return self._value

    @value.setter
    def value(self, address: int) -> None:
        if address != self._value:
            encode(self._handle, address, self.address)
            self._value = address


def encode(handle: MapHandle, address: int, target: int) -> None:
    """Write the map of a tensor at `address` to 128 bytes at `target`. Raise `KernrecError` if the driver refuses."""
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
    """Layout of a texture or surface. Its tensor has the axes (layers, z, y, x, channels)."""

    axes: int | None = None
    """Number of axes of the image, 1 to 3. None means all axes of the tensor except the channels."""
    channels: int = 1
    """Channels of a texel: 1, 2 or 4. If there are several, they are the last axis of the tensor."""
    filter: str = "point"
    address: str = "clamp"
    """Handling of coordinates outside the image: `wrap`, `clamp`, `mirror` or `border`."""
    normalized: bool = False
    """Whether coordinates from 0 to 1 span the image."""
    unit_range: bool = False
    """Whether integer texels are read as fractions from 0 to 1, or from -1 to 1 if they are signed."""

    def image_of(self, name: str, shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Return the extents (x first) and layers of a tensor's image. Raise `UsageError` if no image fits."""
        rest = list(shape)
        if self.channels > 1 and (len(rest) < 2 or rest.pop() != self.channels):
            raise UsageError(
                f"texture {name} has {self.channels} channels, so the last of its extents {tuple(shape)} must be"
                f" {self.channels}"
            )
        axes = min(len(rest), 3) if self.axes is None else self.axes
        if not 1 <= axes <= min(3, len(rest)):
            raise UsageError(f"texture {name}: a tensor of {tuple(shape)} cannot have {axes} axes; 1 to 3 are accepted")
        return tuple(reversed(rest[-axes:])), prod(rest[:-axes])


@dataclass(frozen=True)
class ImageArgument:
    """Argument that is a texture or surface."""

    name: str


@dataclass(frozen=True)
class ImageHandle:
    """Texture or surface of a bound launch."""

    name: str
    dtype: str
    extents: tuple[int, ...]
    layers: int
    """Number of layers. A cube has 6."""
    layout: ImageLayout
