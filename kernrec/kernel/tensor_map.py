"""Describe how a kernel accesses a tensor other than by a pointer: as a tensor map, texture or surface.

A tensor map describes the tensor's memory and the box that one copy moves. The driver encodes maps (CUDA Driver API,
`cuTensorMapEncodeTiled`). In a spec, the argument `map a: block_k, block_m, 1` is a map of tensor `a` with boxes of
these extents, contiguous axis first. A box has one element along axes that the tensor lacks. The swizzle spans one row
of the box, which has 32, 64 or 128 bytes.
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
"""`CUtensorMapSwizzle` by the bytes of a row."""
ELEMENT_TYPES = {
    "u8": 0, "i8": 0, "f8e4m3": 0, "f8e5m2": 0, "u16": 1, "i16": 1, "u32": 2, "i32": 3, "u64": 4, "i64": 5, "f16": 6,
    "f32": 7, "tf32": 7, "f64": 8, "bf16": 9,
}  # fmt: skip
"""`CUtensorMapDataType` by dtype. Copies move dtypes without an equivalent as bytes."""


@dataclass(frozen=True)
class MapArgument:
    """Map of a tensor, passed to a kernel."""

    name: str
    box: tuple[Expression, ...]
    """Elements of a box along each axis, the contiguous axis first."""


@dataclass(frozen=True)
class MapHandle:
    """Map of a tensor with every number fixed. It has the axes of the box, contiguous axis first."""

    name: str
    dtype: str
    extents: tuple[int, ...]
    """Elements along each axis."""
    strides: tuple[int, ...]
    """Bytes between elements along the second and further axes."""
    box: tuple[int, ...]
    """Elements of a box along each axis."""

    @property
    def swizzle(self) -> int:
        """Return the bytes of a row of the box; the swizzle permutes 16-byte pieces within it."""
        return self.box[0] * ELEMENT_BYTES[self.dtype]


def map_of(tensor: Tensor, box: tuple[int, ...]) -> MapHandle:
    """Return the map of a tensor. Raises `UsageError` if the tensor has more axes than the box, or cannot
    have a map.
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
    """Map in the driver's encoding, which is updated for each new address of the tensor."""

    def __init__(self, handle: MapHandle) -> None:
        self._handle = handle
        self._memory = (ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT))()
        self.address = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        """Address of the map."""
        self._value = 0

    @property
    def value(self) -> int:
        """Return the tensor's address."""
        return self._value

    @value.setter
    def value(self, address: int) -> None:
        if address != self._value:
            encode(self._handle, address, self.address)
            self._value = address


def encode(handle: MapHandle, address: int, target: int) -> None:
    """Write the map of a tensor at `address` to the 128 bytes at `target`. Raises `KernrecError` on failure."""
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
    """Layout of a texture or surface tensor, whose axes are layers, z, y, x, channels (slowest first)."""

    axes: int | None = None
    """Number of axes of the image, 1 to 3; None for all axes of the tensor except the channels."""
    channels: int = 1
    """Channels of a texel: 1, 2 or 4. If 2 or 4, they are the last axis of the tensor."""
    filter: str = "point"
    """Filter: `point` or `linear`."""
    address: str = "clamp"
    """Mode for coordinates outside the image: `wrap`, `clamp`, `mirror` or `border`."""
    normalized: bool = False
    """Whether coordinates range from 0 to 1."""
    unit_range: bool = False
    """Whether integers are read as fractions from 0 (signed: -1) to 1."""

    def image_of(self, name: str, shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Return (extents of the image, x first; number of layers) of the tensor `name` with this shape. Raises
        `UsageError` if the tensor cannot have this shape.
        """
        rest = list(shape)
        if self.channels > 1 and (len(rest) < 2 or rest.pop() != self.channels):
            raise UsageError(f"texture {name}: the last extent of {tuple(shape)} is not its {self.channels} channels")
        axes = min(len(rest), 3) if self.axes is None else self.axes
        if not 1 <= axes <= min(3, len(rest)):
            raise UsageError(f"texture {name}: a tensor of {tuple(shape)} cannot have {axes} axes; 1 to 3 are accepted")
        return tuple(reversed(rest[-axes:])), prod(rest[:-axes])


@dataclass(frozen=True)
class ImageArgument:
    """Handle of a tensor as a texture or surface, passed to a kernel."""

    name: str


@dataclass(frozen=True)
class ImageHandle:
    """Handle of a tensor as a texture or surface with every number fixed."""

    name: str
    dtype: str
    extents: tuple[int, ...]
    """Texels along x, y and z."""
    layers: int
    """Number of images; 6 for a cube."""
    layout: ImageLayout
