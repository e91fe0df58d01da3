"""Surfaces: `suld.b sust.b sured.b` (PTX ISA, sections 9.7.11.1 to 9.7.11.3).

Along x a surface is addressed in bytes. An access outside of it is an error (`.trap`), goes to the nearest place
(`.clamp`), or reads zeros and writes nothing (`.zero`). The formatted forms (`.p`) are not supported.
"""

from typing import NamedTuple

import numpy as np

from kernrec.ptx.instructions.atomics import OPERATIONS, turns
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.images import ImageUse, coordinate_rows, geometry_of
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.ir.operand import Operand, Register, Texel, elements
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.errors import EmulationError, location
from kernrec.ptx.state.region import Region
from kernrec.ptx.state.types import Array

_CLOCKS = 8  # of a warp's request: four lanes a clock, as of a texture fetch
_UNITS = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "u32": 4, "s32": 4, "u64": 8, "s64": 8}


class _Place(NamedTuple):
    """Accesses of some lanes to one image."""

    lanes: Array
    region: Region
    element: Array
    """First element of each lane in the buffer, in units of the access."""

    outside: Array
    """Lanes that read zeros."""


class _SurfaceAccess:
    """The addressing of a surface instruction."""

    def __init__(self, decoder: BlockDecoder, ins: Instruction, place: Operand, unit: int, count: int) -> None:
        """An access of `count` elements of `unit` bytes."""
        if not isinstance(place, Texel) or ins.modifiers[0] != "b":
            raise UnsupportedFormError
        self._decoder, self._ins = decoder, ins
        self.unit, self.count = unit, count
        self._geometry = geometry_of(ins)
        self._mode = next((m for m in ins.modifiers if m in ("trap", "clamp", "zero")), "trap")
        self._layer, self._rows = coordinate_rows(decoder, place, self._geometry, "s32")
        self._use = ImageUse(decoder, ins, place)
        if self._geometry.cube:
            raise UnsupportedFormError("its geometry")

    def places(self, kind: str) -> list[_Place]:
        """Where the running lanes access; counted as `kind`: `read`, `write` or `atomic`.

        Raises:
            EmulationError: outside of a surface with `.trap`, misaligned, or a write to what is read-only.
        """
        places = []
        memory, size = self._decoder.memory, self.unit * self.count
        for lanes, image, region in self._use.parts():
            self._use.axes_of(image, self._geometry)
            if kind != "read" and not region.writable:
                raise EmulationError(f"{self._location()}: writes to {region.name}, which is read-only")
            extents = (image.extents[0] * image.texel_bytes, *image.extents[1:])
            coordinates = [row[lanes].astype(np.int64) for row in self._rows]
            layer = np.zeros(len(lanes), np.int64) if self._layer is None else self._layer[lanes].astype(np.int64)
            last = (extents[0] - size, *(extent - 1 for extent in extents[1:]), image.layers - 1)
            wanted = [*coordinates, layer]
            inside = np.logical_and.reduce([(v >= 0) & (v <= most) for v, most in zip(wanted, last, strict=True)])
            if (coordinates[0][inside] % size).any():
                lane = int(lanes[inside][np.flatnonzero(coordinates[0][inside] % size)[0]])
                raise EmulationError(f"{self._location(lane)}: x is not a multiple of {size} bytes")
            if self._mode == "trap" and not inside.all():
                first = int(np.flatnonzero(~inside)[0])
                shown = ", ".join(str(int(v[first])) for v in coordinates)
                raise EmulationError(
                    f"{self._location(int(lanes[first]))}: ({shown}) is outside of the surface {region.name}"
                )
            *clamped, number = [np.clip(v, 0, most) for v, most in zip(wanted, last, strict=True)]
            x = clamped[0] // size * size
            texels = [x // image.texel_bytes, *clamped[1:]]
            first_byte = image.texel(texels, number, 0) * image.texel_bytes + x % image.texel_bytes
            stored = image.stored_at(texels, number, 0)
            outside = ~inside if self._mode == "zero" else np.zeros(len(lanes), np.bool_)
            memory.counters.count_image(region, lanes, np.where(outside, -1, stored)[:, None], kind, size, _CLOCKS)
            places.append(_Place(lanes, region, first_byte // self.unit, outside))
        return places

    def _location(self, lane: int | None = None) -> str:
        text = location(self._decoder.function, self._ins)
        if lane is None:
            return text
        block, thread = self._decoder.memory.lanes.coordinates(lane)
        return f"{text}: block {block} thread {thread}"


def _elements(decoder: BlockDecoder, operand: Operand, unit: int) -> list[Array | None]:
    """The registers of an access; None: discarded."""
    items = elements(operand)
    rows: list[Array | None] = []
    for item in items:
        if item == Register("_"):
            rows.append(None)
            continue
        width, row = decoder.ref(item, f"b{8 * unit}" if unit > 1 else "b16")
        rows.append(decoder.registers.files[width][row])
    return rows


@steps("suld")
def _load(decoder: BlockDecoder, ins: Instruction) -> Step:
    unit = _unit(ins)
    rows = _elements(decoder, ins.operands[0], unit)
    access = _SurfaceAccess(decoder, ins, ins.operands[1], unit, len(rows))

    def run() -> None:
        for place in access.places("read"):
            view = place.region.views[unit]
            for i, row in enumerate(rows):
                if row is not None:
                    row[place.lanes] = np.where(place.outside, 0, view[place.element + i])

    return run


@steps("sust")
def _store(decoder: BlockDecoder, ins: Instruction) -> Step:
    unit = _unit(ins)
    rows = _elements(decoder, ins.operands[1], unit)
    access = _SurfaceAccess(decoder, ins, ins.operands[0], unit, len(rows))

    def run() -> None:
        for place in access.places("write"):
            view = place.region.views[unit]
            there = ~place.outside
            for i, row in enumerate(rows):
                if row is not None:
                    view[place.element[there] + i] = row[place.lanes[there]].astype(view.dtype)

    return run


@steps("sured")
def _reduce(decoder: BlockDecoder, ins: Instruction) -> Step:
    kind = next((m for m in ins.modifiers if m in _UNITS), "")
    name = ins.modifiers[1]
    if name not in ("add", "min", "max", "and", "or") or not kind:
        raise UnsupportedFormError
    unit, operation = _UNITS[kind], OPERATIONS[name]
    source = decoder.row(ins.operands[1], kind)
    access = _SurfaceAccess(decoder, ins, ins.operands[0], unit, 1)

    def run() -> None:
        for place in access.places("atomic"):
            view = place.region.views[unit].view(source.dtype)
            there = ~place.outside
            element, lanes = place.element[there], place.lanes[there]
            for turn in turns(element):
                values = source[lanes[turn]]
                view[element[turn]] = operation(view[element[turn]], values, values)
            if decoder.memory.counters.counts is not None:
                decoder.memory.counters.counts.bump(f"atomic.{place.region.name}", len(lanes))

    return run


def _unit(ins: Instruction) -> int:
    kind = next((m for m in ins.modifiers if m in _UNITS and m[0] == "b" and len(m) > 1), "")
    if not kind:
        raise UnsupportedFormError
    return _UNITS[kind]
