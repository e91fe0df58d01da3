"""Create the textures and surfaces of a captured program."""

from collections.abc import Sequence

import numpy as np

from kernrec.errors import KernrecError
from kernrec.ptx import Image, Sampler
from kernrec.ptx.state.launch_layout import IMAGE_WINDOW, WINDOW_SHIFT

_ADDRESSES = ("wrap", "clamp", "mirror", "border")  # Indexed by cudaTextureAddressMode.
_KINDS = "iuf"  # Indexed by cudaChannelFormatKind.
_LAYERED, _CUBEMAP = 1, 4  # flags of arrays
_NONE = Image("no image", (1,), "u8")


class Textures:
    """Images by handle; the low bits of a handle are the image's number, from 1."""

    def __init__(self) -> None:
        self._images: list[Image] = []
        self._memory: list[tuple[np.ndarray, int] | None] = []

    def add(
        self, memory: np.ndarray, extents: Sequence[int], channel: Sequence[int], place: Sequence[int],
        modes: Sequence[int],
    ) -> int:  # fmt: skip
        """Return the handle of a new image.

        Args:
            memory: Bytes, starting with the first texel.
            extents: Texels along x, y and z; 0 for a missing axis.
            channel: Bits per channel, number of channels, and kind of values.
            place: Bytes between rows, or 0 for contiguous rows; flags of the array.
            modes: Address mode; whether to filter, to read integers as 0 to 1, and to normalize coordinates.

        Raises:
            KernrecError: The rows do not fit in the memory.
        """
        (bits, channels, kind), (pitch, flags) = channel, place
        width, height, depth = extents
        layers = depth if flags & (_LAYERED | _CUBEMAP) and depth else 1
        whole = (width, height, 0 if layers > 1 else depth)
        number = next((i for i, each in enumerate(self._memory) if each is None), len(self._memory))
        mode, linear, unit_range, normalized = modes
        element = f"{_KINDS[kind]}{bits}"
        sampler = Sampler(
            "linear" if linear else "point",
            _ADDRESSES[mode] if normalized or mode in (1, 3) else "clamp",
            bool(normalized),
            bool(unit_range) and element[0] != "f",
        )
        image = Image(f"image {number}", tuple(n for n in whole if n), element, channels, layers, sampler=sampler)
        row = width * image.texel_bytes
        if pitch not in (0, row) and (height - 1) * pitch + row > memory.nbytes:
            raise KernrecError(f"a texture of {height} rows, {pitch} bytes apart, is larger than its allocation")
        if number == len(self._memory):
            self._images.append(image)
            self._memory.append((memory, pitch))
        else:
            self._images[number], self._memory[number] = image, (memory, pitch)
        return IMAGE_WINDOW << WINDOW_SHIFT | number + 1

    def remove(self, handle: int) -> None:
        number = (handle & (1 << WINDOW_SHIFT) - 1) - 1
        if 0 <= number < len(self._memory):
            self._images[number], self._memory[number] = _NONE, None

    def added_to(self, buffers: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Image]]:
        """Return (buffers including those of the images, images by name); images with gaps between rows are copied."""
        if not any(self._memory):
            return buffers, {}
        buffers[_NONE.buffer] = np.zeros(1, np.uint8)
        for image, placed in zip(self._images, self._memory, strict=True):
            if placed is None:
                continue
            memory, pitch = placed
            row = image.extents[0] * image.texel_bytes
            if pitch in (0, row):
                buffers[image.buffer] = memory[: image.bytes]
            else:
                rows = image.extents[1]
                view = np.lib.stride_tricks.as_strided(memory, (rows, row), (pitch, 1))
                buffers[image.buffer] = np.ascontiguousarray(view).reshape(-1)
        return buffers, {f"texture {i}": image for i, image in enumerate(self._images)}
