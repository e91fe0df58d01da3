"""Textures: `tex tld4 txq` (PTX ISA, sections 9.7.10.3 to 9.7.10.5), with handles and with `.texref` variables.

A fetch counts as one read of its buffer: a request for every warp, with the distinct sectors of all the texels that its
lanes filter. Fetches with a depth comparison, multi-sample textures and sparse residency are not supported.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.ir.operand import Operand, Register, Texel, Vector, elements
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.errors import EmulationError, location
from kernrec.ptx.state.region import Region
from kernrec.ptx.state.textures import Corner, Image, corners, cube_face, read_texels
from kernrec.ptx.state.types import Array

_CLOCKS = 8
"""Clocks of a warp's fetch: an SM's four texture units filter one sample of four texels a clock each (NVIDIA A100
Tensor Core GPU Architecture, "4 texture units per SM"; NVIDIA Turing GPU Architecture says the same)."""


class Geometry(NamedTuple):
    """How an instruction names a place."""

    axes: int
    layered: bool = False
    """Whether the number of a layer comes first."""

    cube: bool = False
    """Whether the coordinates are a direction."""


GEOMETRIES = {
    "1d": Geometry(1), "2d": Geometry(2), "3d": Geometry(3), "a1d": Geometry(1, layered=True),
    "a2d": Geometry(2, layered=True), "cube": Geometry(3, cube=True),
    "acube": Geometry(3, layered=True, cube=True),
}  # fmt: skip


def geometry_of(ins: Instruction) -> Geometry:
    """The geometry that an instruction names."""
    name = next((m for m in ins.modifiers if m in GEOMETRIES), None)
    if name is None:
        raise UnsupportedFormError("its geometry")
    return GEOMETRIES[name]


class ImageUse:
    """An instruction's image, and the lanes that use it."""

    def __init__(self, decoder: BlockDecoder, ins: Instruction, operand: Operand) -> None:
        self._decoder = decoder
        self._ins = ins
        self._running = decoder.running_numbers(ins)
        self._handles = decoder.row(operand if not isinstance(operand, Texel) else operand.image, "b64")

    def parts(self) -> list[tuple[Array, Image, Region]]:
        """The running lanes by image.

        Raises:
            EmulationError: a value that is not a handle.
        """
        memory = self._decoder.memory
        lanes = self._running()
        handles = self._handles[lanes]
        parts = []
        for handle in np.unique(handles).tolist():
            mine = lanes[handles == handle]
            if handle not in memory.images:
                block, thread = memory.lanes.coordinates(int(mine[0]))
                raise EmulationError(
                    f"{location(self._decoder.function, self._ins)}: block {block} thread {thread} uses 0x{handle:x}, "
                    "which is the handle of no texture or surface"
                )
            parts.append((mine, *memory.images[handle]))
        return parts

    def axes_of(self, image: Image, geometry: Geometry) -> None:
        """Raises `EmulationError` where the image has not the axes of the instruction."""
        if len(image.extents) != (2 if geometry.cube else geometry.axes):
            raise EmulationError(
                f"{location(self._decoder.function, self._ins)}: the image over {image.buffer} has"
                f" {len(image.extents)} axes"
            )


def coordinate_rows(
    decoder: BlockDecoder, place: Texel, geometry: Geometry, kind: str
) -> tuple[Array | None, list[Array]]:
    """The rows of the layer and of the coordinates."""
    operands = list(place.coordinates)
    if len(operands) < geometry.axes + geometry.layered:
        raise UnsupportedFormError(f"{len(operands)} coordinates")
    layer = decoder.row(operands.pop(0), "u32") if geometry.layered else None
    return layer, [decoder.row(operand, kind) for operand in operands[: geometry.axes]]


def _places(
    image: Image, geometry: Geometry, layer: Array | None, rows: Sequence[Array], lanes: Array
) -> tuple[Array, list[Array]]:
    """The number of the layer, or face, that each lane reads, and its coordinates there."""
    number = np.zeros(len(lanes), np.int64) if layer is None else layer[lanes].astype(np.int64)
    places = [row[lanes] for row in rows]
    if geometry.cube:
        face, s, t = cube_face(*places)
        number, places = number * 6 + face, [s, t]
    return np.clip(number, 0, image.layers - 1), places


class _Output(NamedTuple):
    """Where the four channels go."""

    rows: list[Array | None]
    """The registers; None: discarded."""

    kind: str
    """PTX type of the result."""

    def put(self, channel: int, lanes: Array, values: Array) -> None:
        """Writes a channel."""
        if self.kind == "f16x2":
            row = self.rows[channel // 2]
            if row is not None:
                row.view(np.float16)[channel % 2 :: 2][lanes] = values
        elif (row := self.rows[channel]) is not None:
            with np.errstate(all="ignore"):
                # Integers wider than theirs: the bits of the texel, extended by its sign.
                row[lanes] = values if self.kind == "f32" else values.astype(np.int64).astype(row.dtype)


def _output(decoder: BlockDecoder, ins: Instruction, operand: Operand) -> _Output:
    kind = ins.modifiers[-2]
    if not isinstance(operand, Vector) or kind not in ("f32", "u32", "s32", "f16x2"):
        raise UnsupportedFormError
    if len(operand.items) != (2 if kind == "f16x2" else 4):
        raise UnsupportedFormError(f"{len(operand.items)} results")
    rows = [
        None if item == Register("_") else decoder.row(item, "b32" if kind == "f16x2" else kind)
        for item in operand.items
    ]
    return _Output(rows, kind)


@steps("tex")
def _texture(decoder: BlockDecoder, ins: Instruction) -> Step:
    place = ins.operands[1]
    coordinate_type = ins.modifiers[-1]
    if not isinstance(place, Texel) or coordinate_type not in ("f32", "s32"):
        raise UnsupportedFormError
    geometry, output = geometry_of(ins), _output(decoder, ins, ins.operands[0])
    layer, rows = coordinate_rows(decoder, place, geometry, coordinate_type)
    rest = list(ins.operands[2:])
    lod: Array | None = None
    slopes: list[list[Array]] = []
    if "level" in ins.modifiers:
        lod = decoder.row(rest.pop(0), coordinate_type)
    if "grad" in ins.modifiers:
        slopes = [_vector_rows(decoder, rest.pop(0), geometry.axes) for _ in range(2)]
    offset = _vector_rows(decoder, rest.pop(0), geometry.axes, "s32") if rest and isinstance(rest[0], Vector) else None
    if rest:
        raise UnsupportedFormError("a depth comparison")
    use = ImageUse(decoder, ins, place)
    whole = coordinate_type == "s32"

    def run() -> None:
        for lanes, image, region in use.parts():
            use.axes_of(image, geometry)
            shift = None if offset is None else [row[lanes] for row in offset]
            if lod is not None:
                level = lod[lanes].astype(np.float64)
            elif slopes:
                level = _level_of(image, [[row[lanes] for row in slope] for slope in slopes])
            else:
                level = np.zeros(len(lanes))
            fetch = _Fetch(image, region, lanes, *_places(image, geometry, layer, rows, lanes), shift, level, whole)
            _fetch(decoder, fetch, output)

    return run


def _vector_rows(decoder: BlockDecoder, operand: Operand, axes: int, kind: str = "f32") -> list[Array]:
    items = elements(operand)
    if len(items) < axes:
        raise UnsupportedFormError(f"{len(items)} elements for {axes} axes")
    return [decoder.row(item, kind) for item in items[:axes]]


def _level_of(image: Image, slopes: Sequence[Sequence[Array]]) -> Array:
    """The level of detail of gradients: the logarithm of the longer one in texels."""
    lengths = []
    for slope in slopes:
        scaled = [
            axis.astype(np.float64) * (extent if image.sampler.normalized else 1)
            for axis, extent in zip(slope, image.extents, strict=False)
        ]
        lengths.append(np.sqrt(sum(axis**2 for axis in scaled)))
    level: Array = np.log2(np.maximum(np.maximum(*lengths), 1.0))
    return level


class _Fetch(NamedTuple):
    """The texels that some lanes fetch from one image."""

    image: Image
    region: Region
    lanes: Array
    layer: Array
    """Number of the layer, or face."""

    places: list[Array]
    shift: list[Array] | None
    """Texels to add to the coordinates."""

    level: Array
    whole: bool
    """Whether the coordinates are numbers of texels."""


def _fetch(decoder: BlockDecoder, fetch: _Fetch, output: _Output) -> None:
    """Filters, counts, and writes the channels."""
    image, lanes = fetch.image, fetch.lanes
    # Levels are not mixed: the nearest one is read.
    levels = np.clip(np.floor(fetch.level + 0.5), 0, image.levels - 1).astype(np.int64)
    linear = image.sampler.filter == "linear" and not fetch.whole
    for level in np.unique(levels).tolist():
        mine = np.flatnonzero(levels == level)
        places = [place[mine] for place in fetch.places]
        if fetch.shift is not None:
            size = [extent if image.sampler.normalized else 1 for extent in image.extents_at(level)]
            places = [p + s[mine] / n for p, s, n in zip(places, fetch.shift, size, strict=False)]
        read = corners(image, level, places, linear, fetch.whole)
        layer = fetch.layer[mine]
        result: Array | float = 0.0
        for corner in read:
            values = _texels(fetch, corner, layer, level)
            result = values if len(read) == 1 else result + values * np.asarray(corner.weight)[:, None]
        _count(decoder, fetch, read, (layer, level), lanes[mine])
        assert isinstance(result, np.ndarray)
        for channel in range(4):
            output.put(channel, lanes[mine], result[:, channel])


def _texels(fetch: _Fetch, corner: Corner, layer: Array, level: int) -> Array:
    texel = fetch.image.texel(corner.coordinates, layer, level)
    return read_texels(fetch.image, fetch.region.bytes, texel, corner.inside)


def _count(
    decoder: BlockDecoder, fetch: _Fetch, read: Sequence[Corner], place: tuple[Array, int], lanes: Array
) -> None:
    """Counts what a fetch of some corners reads; `place`: layer and level."""
    image = fetch.image
    stored = np.stack([np.where(c.inside, image.stored_at(c.coordinates, *place), -1) for c in read], axis=1)
    passes = _CLOCKS * max(len(read) // 4, 1)
    decoder.memory.counters.count_image(fetch.region, lanes, stored, "read", image.texel_bytes, passes)


@steps("tld4")
def _gather(decoder: BlockDecoder, ins: Instruction) -> Step:
    """One channel of the four texels that a linear filter would mix."""
    place = ins.operands[1]
    channel = "rgba".find(ins.modifiers[0])
    geometry, output = geometry_of(ins), _output(decoder, ins, ins.operands[0])
    if not isinstance(place, Texel) or channel < 0 or ins.modifiers[-1] != "f32" or len(ins.operands) != 2:
        raise UnsupportedFormError
    if geometry.axes != 2 and not geometry.cube:
        raise UnsupportedFormError
    layer, rows = coordinate_rows(decoder, place, geometry, "f32")
    use = ImageUse(decoder, ins, place)

    def run() -> None:
        for lanes, image, region in use.parts():
            use.axes_of(image, geometry)
            number, places = _places(image, geometry, layer, rows, lanes)
            fetch = _Fetch(image, region, lanes, number, places, None, np.zeros(len(lanes)), False)
            read = corners(image, 0, places, True, False)  # of x and y: 00, 01, 10, 11
            _count(decoder, fetch, read, (number, 0), lanes)
            for i, corner in enumerate((read[1], read[3], read[2], read[0])):
                output.put(i, lanes, _texels(fetch, corner, number, 0)[:, channel])

    return run


_QUERIES: dict[str, Callable[[Image], int]] = {
    "width": lambda image: image.extents[0],
    "height": lambda image: (*image.extents, 0)[1],
    "depth": lambda image: (*image.extents, 0, 0)[2],
    "array_size": lambda image: image.layers,
    "num_mipmap_levels": lambda image: image.levels,
    "normalized_coords": lambda image: int(image.sampler.normalized),
}


@steps("txq", "suq")
def _query(decoder: BlockDecoder, ins: Instruction) -> Step:
    """`suq`: PTX ISA, section 9.7.11.4."""
    query = next((m for m in ins.modifiers if m in _QUERIES), None)
    operand = ins.operands[1]
    if query is None or "level" in ins.modifiers:
        raise UnsupportedFormError("this property")
    row = decoder.row(ins.operands[0], "u32")
    use = ImageUse(decoder, ins, _image_operand(operand))
    answer = _QUERIES[query]

    def run() -> None:
        for lanes, image, _ in use.parts():
            row[lanes] = answer(image)

    return run


def _image_operand(operand: Operand) -> Operand:
    """The image of `[texture]`, which reads like an address."""
    base = getattr(operand, "base", None)
    if base is None:
        raise UnsupportedFormError
    image: Operand = base
    return image
