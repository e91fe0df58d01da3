"""Describe how a kernel accesses a tensor as a texture or surface."""

from collections.abc import Sequence
from math import prod

from kernrec.errors import UsageError
from kernrec.util.light_dataclass import dataclass


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
