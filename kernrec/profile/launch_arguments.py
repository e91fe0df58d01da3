"""Parse short descriptions of the arguments of a launch.

The first descriptions are for the kernel's parameters, in order. Further descriptions set `__constant__` and
`__device__` variables:

    a=f32[4096]        a buffer named a with random normal values (integers: 0 to 99)
    a=zeros:f32[4096]  a buffer of zeros
    a=nan:f32[4096]    a buffer of NaNs, which show elements that a kernel does not write
    a=unwritten:f32[4096]   a buffer without content: `kernrec check` reports reads before the first write
    a=@values.npy      a buffer with the content of a NumPy file
    a=texture(linear,wrap,normalized):u8[480x640]   a texture over a buffer, slowest extent first. Options as in a
                       kernel.toml's `texture` table. For a surface, write `surface`
    a=map(box=16x64,swizzle=128):f16[40x104]        a tensor map of a buffer, slowest extent first. `steps=1x2` sets
                       the element strides. With `nan`, elements outside of the tensor are NaN
    a=texture(channels=4):@values.npy   a texture, surface or tensor map over the content of a NumPy file
    a=f32:2.5          a buffer of one element with this value
    p=x+1024           a pointer to element 1024 of the buffer x
    p=null             a null pointer
    i32:4096           a number passed by value: i8 to i64, u8 to u64, f16, f32 or f64
    s=struct(f32:1,i32:2)   a structure passed by value, laid out as C does; equal to s=bytes:0000803f02000000
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.kernel.tensor_map import ImageLayout
from kernrec.op.dtype import canonical_dtype
from kernrec.profile.emulated_launch import image_of
from kernrec.profile.tensor_values import ELEMENTS, load_npy
from kernrec.ptx import BufferPlace, Image, TensorMap
from kernrec.ptx.state.descriptors import ADDRESSES, ELEMENT_TYPES, FILTERS
from kernrec.util.light_dataclass import dataclass

BUFFER_TYPES = {name: kind for name, kind in ELEMENTS.items() if name != "bf16" and name[:2] != "f8"}
"""NumPy type of each element type of a buffer."""
SCALAR_TYPES = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "f32", "f64")
_LONGEST = 1 << 16
"""Maximum number of characters of a description. Linux passes twice as many in one argument."""
_BUFFER = re.compile(r"([A-Za-z_]\w*)=((?:(?:zeros|nan|unwritten):)?[a-z]+[0-9]*\[[0-9]{1,18}\]|@.+)")
_INSIDE = re.compile(r"([A-Za-z_]\w*)=([A-Za-z_]\w*)\s*\+\s*([0-9]{1,18})")
_BYTES = re.compile(r"(?:[A-Za-z_]\w*=)?(?:bytes:((?:[0-9A-Fa-f]{2}){1,4096})|struct\((.+)\))")
_ELEMENT = re.compile(r"([A-Za-z_]\w*)=([a-z]+[0-9]+:[^\[\]]+)")
_VIEW = re.compile(r"([A-Za-z_]\w*)=(?:(texture|surface)(?:\(([\w=, ]*)\))?|map\(([\w=, ]*)\)):(.+)")
_SHAPED = re.compile(r"(?:(zeros|nan|unwritten):)?([a-z]+[0-9]*)\[([0-9]{1,18}(?:x[0-9]{1,18})*)\]")
_SCALAR = re.compile(r"([a-z]+[0-9]+):(.+)")
MOST_ELEMENTS = 1 << 28
"""Maximum number of elements of a buffer."""


@dataclass(frozen=True)
class MapModes:
    """Tensor map of a buffer: `map(box=16x64,swizzle=128)`."""

    box: tuple[int, ...]
    """Elements along each axis that one copy moves, slowest axis first."""
    swizzle: int = 0
    """Width in bytes of the swizzle of shared memory, or 0."""
    steps: tuple[int, ...] = ()
    """Element stride along each axis. If it is empty, the strides are 1."""
    fill_nan: bool = False
    """Whether elements outside the tensor are read as NaN instead of zero."""


@dataclass(frozen=True)
class BufferDescription:
    """Buffer, such as `a=f32[4096]`, `a=@values.npy` or `a=texture(linear):f32[64x64]`."""

    name: str
    path: Path | None = None
    """NumPy file with the content, or None if there is no file."""
    fill: str | None = None
    """`zeros`, `nan` or `unwritten`, or None for random values."""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    """Extents, slowest first."""
    value: float | int | None = None
    """Value of every element, or None."""
    view: ImageLayout | MapModes | None = None
    """Texture, surface or tensor map that the kernel gets, or None for a pointer."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class ScalarDescription:
    """Number passed by value: `i32:4096`."""

    dtype: str
    value: float | int


Description = BufferDescription | ScalarDescription | BufferPlace | bytes
"""Description of an argument: a buffer, a number, a pointer into a buffer, or the bytes of a structure."""


def read_description(text: str) -> Description:
    """Parse the description of an argument. Raise `UsageError` if this fails. Types are not checked."""
    if len(text) > _LONGEST:
        raise UsageError(f"the description of an argument has {len(text)} characters; at most {_LONGEST} are accepted")
    if match := _VIEW.fullmatch(text):
        name, image, image_modes, map_modes, content = match.groups()
        view = _image_layout(text, image_modes or "") if image else _map_modes(text, map_modes)
        return replace(_read_buffer(text, name, content, "texture" if image else "map(box=16x64)"), view=view)
    if match := _BUFFER.fullmatch(text):
        return _read_buffer(text, *match.groups())
    if re.fullmatch(r"[A-Za-z_]\w*=null(?:ptr)?", text):
        return ScalarDescription("u64", 0)
    if match := _INSIDE.fullmatch(text):
        return BufferPlace(match[2], int(match[3]))
    if match := _BYTES.fullmatch(text):
        return bytes.fromhex(match[1]) if match[1] else structure(match[2])
    if match := _ELEMENT.fullmatch(text):
        element = read_description(match[2])
        if isinstance(element, ScalarDescription):
            return BufferDescription(match[1], None, None, element.dtype, (1,), element.value)
    if match := _SCALAR.fullmatch(text):
        dtype, value = match.groups()
        try:
            return ScalarDescription(dtype, float(value) if dtype[0] == "f" else int(value, 0))
        except ValueError:
            raise _invalid_number(text, value, dtype) from None
    raise UsageError(f"argument {text!r}: expected a=f32[4096], a=zeros:f32[4096], a=@values.npy or i32:4096")


def structure(fields: str) -> bytes:
    """Return the bytes of a C structure such as `f32:1,i32:2`. Raise `UsageError` if the text is invalid."""
    raw, pointers = read_structure(fields)
    if pointers:
        raise _invalid_field(pointers[0][1])
    return raw


def read_structure(fields: str) -> tuple[bytes, list[tuple[int, str]]]:
    """Convert fields such as `i32:4,f32[16]` to (bytes of a C structure, pointers in the structure).

    A pointer is (offset in bytes, buffer such as `f32[16]`). The bytes of pointers are zero.
    """
    raw, largest, pointers = bytearray(), 1, list[tuple[int, str]]()
    for text in map(str.strip, fields.split(",")):
        pointer = text.endswith("]")
        described = read_description("u64:0" if pointer else text) if pointer or _SCALAR.fullmatch(text) else None
        if not isinstance(described, ScalarDescription):
            raise _invalid_field(text)
        value = _number(text, described)
        largest = max(largest, value.nbytes)
        raw += bytes(-len(raw) % value.nbytes)
        if pointer:
            pointers.append((len(raw), text))
        raw += value.tobytes()
    return bytes(raw + bytes(-len(raw) % largest)), pointers


def _invalid_field(text: str) -> UsageError:
    return UsageError(f"field {text!r:.60}: expected a number such as f32:1")


def _number(text: str, described: ScalarDescription) -> np.generic:
    kind = BUFFER_TYPES[_element_type(described.dtype, SCALAR_TYPES)]
    try:
        value: np.generic = np.array([described.value], dtype=kind)[0]
    except OverflowError:
        raise _invalid_number(text, described.value, described.dtype) from None
    return value


def _modes(modes: str) -> Iterator[tuple[str, str, str]]:
    """Yield each mode as text, key and value, such as (`box=16x64`, `box`, `16x64`)."""
    for mode in filter(None, map(str.strip, modes.split(","))):
        key, _, value = mode.partition("=")
        yield mode, key, value


def _image_layout(text: str, modes: str) -> ImageLayout:
    layout: dict[str, Any] = {}
    for mode, key, value in _modes(modes):
        if key in ("axes", "channels") and re.fullmatch(r"[0-9]{1,9}", value):
            layout[key] = int(value)
        elif mode in ("normalized", "unit_range"):
            layout[mode] = True
        elif mode in (*FILTERS, *ADDRESSES):
            layout["filter" if mode in FILTERS else "address"] = mode
        else:
            known_modes = (*FILTERS, *ADDRESSES, "normalized", "unit_range", "channels=4", "axes=2")
            raise UsageError(f"argument {text!r}: {unknown('mode', mode, known_modes)}")
    return ImageLayout(**layout)


def _map_modes(text: str, modes: str) -> MapModes:
    fields: dict[str, Any] = {}
    for mode, key, value in _modes(modes):
        if key in ("box", "steps") and re.fullmatch(r"[0-9]{1,9}(?:x[0-9]{1,9}){0,4}", value):
            fields[key] = tuple(map(int, value.split("x")))
        elif key == "swizzle" and value.isdigit():
            fields[key] = int(value[:9])
        elif mode == "nan":
            fields["fill_nan"] = True
        else:
            known_modes = ("box=16x64", "swizzle=128", "steps=1x2", "nan")
            raise UsageError(f"argument {text!r}: {unknown('mode', mode, known_modes)}")
    if "box" not in fields:
        raise UsageError(f"argument {text!r}: expected the box that a copy moves, as in a=map(box=16x64):f16[40x104]")
    return MapModes(**fields)


def _read_buffer(text: str, name: str, content: str, view: str = "") -> BufferDescription:
    """Parse the buffer `content` of the description `text`. Examples in error messages begin with `a={view}`."""
    if content.startswith("@"):
        return BufferDescription(name, Path(content[1:]))
    if match := _SHAPED.fullmatch(content):
        shape = tuple(int(extent) for extent in match[3].split("x"))
        return BufferDescription(name, None, match[1], canonical_dtype(match[2]), shape)
    raise UsageError(f"argument {text!r}: expected a={view}:f32[480x640] or a={view}:@values.npy")


def _invalid_number(text: str, value: object, dtype: str) -> UsageError:
    return UsageError(f"argument {text!r}: {str(value)!r} is not a valid {dtype}")


@dataclass(frozen=True)
class Arguments:
    order: list[Any]
    """Arguments in the order of the kernel's parameters: names of buffers, or numbers."""
    buffers: dict[str, np.ndarray]
    images: dict[str, Image] = field(default_factory=dict)
    """Textures and surfaces by name."""
    unwritten: set[str] = field(default_factory=set)
    """Buffers that nothing has written before the launch."""
    drawn: set[str] = field(default_factory=set)
    """Buffers whose integers are random."""


def read_arguments(descriptions: Sequence[str], seed: int = 0) -> Arguments:
    """Create the arguments of a launch from descriptions. Raise `UsageError` if a description is invalid."""
    draw = np.random.default_rng(seed)
    arguments = Arguments([], {})
    for text in descriptions:
        described = read_description(text)
        if not isinstance(described, BufferDescription):
            arguments.order.append(_number(text, described) if isinstance(described, ScalarDescription) else described)
            continue
        name, view = described.name, described.view
        array, shape, dtype = _filled(described, draw, text)
        arguments.buffers[name] = array
        if described.fill == "unwritten":
            arguments.unwritten.add(name)
        if described.path is None and described.fill is None and described.value is None and dtype[0] != "f":
            arguments.drawn.add(name)
        if isinstance(view, ImageLayout):
            arguments.images[name] = image_of(name, dtype, *view.image_of(name, shape), view)
        arguments.order.append(_tensor_map(text, name, view, shape, dtype) if isinstance(view, MapModes) else name)
    for number, argument in enumerate(arguments.order):
        if isinstance(argument, BufferPlace):
            if argument not in arguments.buffers:
                raise unknown("buffer", str(argument), arguments.buffers)
            array = arguments.buffers[argument]
            if not 0 <= argument.offset <= array.size:
                raise UsageError(
                    f"{argument}+{argument.offset}: the offset is too large; {argument} has {array.size} elements"
                )
            arguments.order[number] = BufferPlace(argument, argument.offset * array.itemsize)
    return arguments


def _tensor_map(text: str, name: str, modes: MapModes, shape: tuple[int, ...], dtype: str) -> TensorMap:
    kind = dtype.replace("i", "s") if dtype in ("i32", "i64") else dtype.replace("i", "u")
    if not len(shape) == len(modes.box) == len(modes.steps or modes.box):
        raise UsageError(f"argument {text!r}: the tensor has {len(shape)} extents, but the box has {len(modes.box)}")
    if kind not in ELEMENT_TYPES:
        raise UsageError(f"argument {text!r}: {unknown('element type of a tensor map', dtype, ELEMENT_TYPES)}")
    extents = shape[::-1]
    size = np.dtype(BUFFER_TYPES[dtype]).itemsize
    strides = tuple(size * math.prod(extents[: axis + 1]) for axis in range(len(extents) - 1))
    box, steps = modes.box[::-1], modes.steps[::-1]
    return TensorMap(name, kind, extents, strides, box, modes.swizzle, steps, modes.fill_nan)


def _element_type(dtype: str, dtypes: Sequence[str] | Mapping[str, Any]) -> str:
    if dtype not in dtypes:
        raise unknown("element type", dtype, dtypes)
    return dtype


def _filled(buffer: BufferDescription, draw: np.random.Generator, text: str) -> tuple[np.ndarray, tuple[int, ...], str]:
    """Return the content, extents and element type of a buffer."""
    if buffer.path is not None:
        array = np.array(load_npy(buffer.path), order="C")
        return array, array.shape, f"{array.dtype.kind}{8 * array.dtype.itemsize}"
    kind, count = BUFFER_TYPES[_element_type(buffer.dtype, BUFFER_TYPES)], buffer.elements
    if not 1 <= count <= MOST_ELEMENTS:
        raise UsageError(f"argument {text!r}: 1 to {MOST_ELEMENTS} elements are accepted")
    if buffer.value is not None:
        array = np.full(count, buffer.value).astype(kind)
    elif buffer.fill == "unwritten":
        array = np.frombuffer(b"\xff" * (count * np.dtype(kind).itemsize), kind).copy()
    elif buffer.fill == "zeros":
        array = np.zeros(count, dtype=kind)
    elif buffer.dtype[0] != "f":
        if buffer.fill:
            raise UsageError(f"argument {text!r}: {buffer.dtype} has no NaN")
        array = draw.integers(0, 100, count).astype(kind)
    else:
        array = np.full(count, np.nan, kind) if buffer.fill else draw.standard_normal(count).astype(kind)
    return array, buffer.shape, buffer.dtype
