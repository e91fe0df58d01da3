"""How a kernel accesses a tensor as a texture or a surface."""

from collections.abc import Sequence
from math import prod

from kernrec.errors import UsageError
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class ImageLayout:
    """Tensor as a texture or surface. Its extents are slowest first: layers, z, y, x, channels."""

    axes: int | None = None
    """Number of axes of the image, 1 to 3; None for all extents of the tensor except for that of the channels."""
    channels: int = 1
    """Channels of a texel: 1, 2 or 4. With 2 or 4, they are the last extent of the tensor."""
    filter: str = "point"
    """`point` or `linear`."""
    address: str = "clamp"
    """Mode for coordinates outside: `wrap`, `clamp`, `mirror` or `border`."""
    normalized: bool = False
    """Whether coordinates range from 0 to 1."""
    unit_range: bool = False
    """Whether integers are read as numbers from 0 (signed: -1) to 1."""

    def image_of(self, name: str, shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Return the extents of the image, x first, and the number of layers of a tensor of this shape. Raises
        `UsageError` if the tensor `name` cannot have this shape.
        """
        rest = list(shape)
        if self.channels > 1 and (len(rest) < 2 or rest.pop() != self.channels):
            raise UsageError(f"texture {name}: the last extent of {tuple(shape)} is not its {self.channels} channels")
        axes = min(len(rest), 3) if self.axes is None else self.axes
        if not 1 <= axes <= min(3, len(rest)):
            raise UsageError(f"texture {name}: a tensor of {tuple(shape)} has no {axes} axes; 1 to 3 are accepted")
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
