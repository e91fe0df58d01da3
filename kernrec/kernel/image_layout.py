"""How a kernel sees a tensor that it is given as a texture or a surface."""

from collections.abc import Sequence
from math import prod

from kernrec.errors import UsageError
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class ImageLayout:
    """A tensor as a texture or surface; its extents are slowest first: layers, z, y, x, channels."""

    axes: int | None = None
    """Axes of the image, 1 to 3; None: all extents of the tensor but that of the channels."""
    channels: int = 1
    """Channels of a texel: 1, 2 or 4; from 2 on the last extent of the tensor."""
    filter: str = "point"
    """`point` or `linear`."""
    address: str = "clamp"
    """Of coordinates outside: `wrap`, `clamp`, `mirror` or `border`."""
    normalized: bool = False
    """Whether coordinates go from 0 to 1."""
    unit_range: bool = False
    """Whether integers are read as numbers from 0 (signed ones: -1) to 1."""

    def image_of(self, name: str, shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Extents of the image, x first, and how many layers a tensor of this shape has.

        Raises:
            UsageError: the tensor `name` has no such shape.
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
    """The handle of a tensor as a texture or surface, passed to a kernel."""

    name: str


@dataclass(frozen=True)
class ImageHandle:
    """The handle of a tensor as a texture or surface with every number fixed."""

    name: str
    dtype: str
    extents: tuple[int, ...]
    """Texels along x, y and z."""
    layers: int
    """How many images; of a cube 6."""
    layout: ImageLayout
