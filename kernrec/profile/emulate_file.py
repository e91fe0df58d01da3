"""Runs one kernel of a CUDA or PTX file on the CPU: arguments from short descriptions, counts and buffers back.

The arguments are described in the order of the kernel's parameters:

    a=f32[4096]        a buffer of random normal values (integers: 0 to 99), here named a
    a=zeros:f32[4096]  a buffer of zeros; with `nan:` of NaNs, which shows what a kernel leaves unwritten
    a=@values.npy      a buffer with the content of a NumPy file
    a=texture(linear,wrap,normalized):u8[480x640]   a texture or surface over a buffer of this shape, slowest extent
    a=texture(channels=4):@values.npy               first, with the modes of a `texture` table in a kernel.toml
    i32:4096           a number passed by value: i8 to i64, u8 to u64, f32 or f64
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.compile.nvrtc import compile_source
from kernrec.errors import UsageError, unknown
from kernrec.kernel.image_layout import ImageLayout
from kernrec.profile.probe_profile import image_of
from kernrec.profile.tensor_values import ELEMENTS, load_npy
from kernrec.ptx import Counts, Image, KernelLaunch, Module, emulate, parse
from kernrec.ptx.ir.declarations import OPAQUE_TYPES
from kernrec.ptx.state.textures import ADDRESSES, FILTERS

_ELEMENTS = {name: kind for name, kind in ELEMENTS.items() if name != "bf16" and name[:2] != "f8"}
_SCALARS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f32", "f64")
_BUFFER = re.compile(r"([A-Za-z_]\w*)=(?:(zeros|nan):)?([a-z]+[0-9]+)\[([0-9]{1,18})\]")
_IMAGE = re.compile(r"([A-Za-z_]\w*)=(?:texture|surface)(?:\(([\w=, ]*)\))?:(.+)")
_SHAPED = re.compile(r"(?:(zeros|nan):)?([a-z]+[0-9]+)\[([0-9]{1,18}(?:x[0-9]{1,18})*)\]")
_FILE = re.compile(r"([A-Za-z_]\w*)=@(.+)")
_SCALAR = re.compile(r"([a-z]+[0-9]+):(.+)")
_LARGEST_SOURCE = 16 << 20
_MOST_ELEMENTS = 1 << 28


@dataclass(frozen=True)
class BufferDescription:
    """A buffer of values: `a=f32[4096]`, `a=zeros:f32[4096]`."""

    name: str
    """What it is called."""

    fill: str | None
    """`zeros`, `nan`, or None for random values."""

    dtype: str
    """Type of its elements."""

    elements: int
    """How many it has."""


@dataclass(frozen=True)
class FileDescription:
    """A buffer with the content of a NumPy file: `a=@values.npy`."""

    name: str
    """What it is called."""

    path: Path
    """The file."""


@dataclass(frozen=True)
class ScalarDescription:
    """A number passed by value: `i32:4096`."""

    dtype: str
    """Its type."""

    value: float | int
    """The number; an int where the type is an integer."""


@dataclass(frozen=True)
class ImageDescription:
    """A texture or surface: `a=texture(linear):f32[64x64]`, `a=surface:@values.npy`."""

    content: BufferDescription | FileDescription
    """What it lies over."""

    shape: tuple[int, ...]
    """Extents, slowest first; of a file, none."""

    layout: ImageLayout
    """How it is read."""


Description = BufferDescription | FileDescription | ImageDescription | ScalarDescription


def read_description(text: str) -> Description:
    """What the description of an argument means; types are not checked.

    Raises:
        UsageError: a text that is not a description, or a value that is not a number.
    """
    if match := _BUFFER.fullmatch(text):
        return BufferDescription(match[1], match[2], match[3], int(match[4]))
    if match := _IMAGE.fullmatch(text):
        return _read_image(text, *match.groups())
    if match := _FILE.fullmatch(text):
        return FileDescription(match[1], Path(match[2]))
    if match := _SCALAR.fullmatch(text):
        dtype, value = match.groups()
        try:
            return ScalarDescription(dtype, float(value) if dtype[0] == "f" else int(value, 0))
        except ValueError:
            raise _invalid_number(text, value, dtype) from None
    raise UsageError(f"argument {text!r}: expected a=f32[4096], a=zeros:f32[4096], a=@values.npy or i32:4096")


def _read_image(text: str, name: str, modes: str | None, content: str) -> ImageDescription:
    """The description of a texture: its modes, and what it lies over."""
    given: dict[str, Any] = {}
    for mode in (part.strip() for part in (modes or "").split(",") if part.strip()):
        key, _, value = mode.partition("=")
        if key in ("axes", "channels") and re.fullmatch(r"[0-9]{1,9}", value):
            given[key] = int(value)
        elif mode in ("normalized", "unit_range"):
            given[mode] = True
        elif mode in (*FILTERS, *ADDRESSES):
            given["filter" if mode in FILTERS else "address"] = mode
        else:
            known = (*FILTERS, *ADDRESSES, "normalized", "unit_range", "channels=4", "axes=2")
            raise UsageError(f"argument {text!r}: {unknown('mode', mode, known)}")
    layout = ImageLayout(**given)
    if content.startswith("@"):
        return ImageDescription(FileDescription(name, Path(content[1:])), (), layout)
    if match := _SHAPED.fullmatch(content):
        shape = tuple(int(extent) for extent in match[3].split("x"))
        return ImageDescription(BufferDescription(name, match[1], match[2], math.prod(shape)), shape, layout)
    raise UsageError(f"argument {text!r}: expected a=texture:f32[480x640] or a=texture(linear):@values.npy")


def _invalid_number(text: str, value: object, dtype: str) -> UsageError:
    return UsageError(f"argument {text!r}: {str(value)!r} is not a valid {dtype}")


@dataclass(frozen=True)
class Arguments:
    """The arguments of a launch."""

    order: list[Any]
    """Names of buffers and scalars, in the order of the parameters."""

    buffers: dict[str, np.ndarray]
    """The buffers by name."""

    images: dict[str, Image] = field(default_factory=dict)
    """Textures and surfaces by name."""


def read_arguments(descriptions: Sequence[str], seed: int = 0) -> Arguments:
    """Arguments from their descriptions; `seed`: of random values.

    Raises:
        UsageError: a description that cannot be read, or a file that cannot be loaded.
    """
    draw = np.random.default_rng(seed)
    order: list[Any] = []
    buffers: dict[str, np.ndarray] = {}
    images: dict[str, Image] = {}
    for text in descriptions:
        match read_description(text):
            case BufferDescription(name) as buffer:
                buffers[name] = _filled(buffer, draw, text)
                order.append(name)
            case FileDescription(name, path):
                buffers[name] = np.array(load_npy(path), order="C")
                order.append(name)
            case ImageDescription(content, shape, layout):
                name = content.name
                if isinstance(content, FileDescription):
                    buffers[name] = np.array(load_npy(content.path), order="C")
                    shape, dtype = buffers[name].shape, _dtype_of(buffers[name])
                else:
                    buffers[name], dtype = _filled(content, draw, text), content.dtype
                images[name] = image_of(name, dtype, *layout.image_of(name, shape), layout)
                order.append(name)
            case ScalarDescription(dtype, value):
                kind = _ELEMENTS[_known(dtype, _SCALARS)]
                try:
                    order.append(np.array(value, dtype=kind)[()])
                except OverflowError:
                    raise _invalid_number(text, value, dtype) from None
    return Arguments(order, buffers, images)


def _dtype_of(array: np.ndarray) -> str:
    return f"{array.dtype.kind}{8 * array.dtype.itemsize}"


@dataclass(frozen=True)
class FileLaunch:
    """One launch of a kernel in a CUDA or PTX file."""

    path: Path
    """A `.cu` or `.ptx` file."""

    entry: str | None
    """Name of the kernel; None: the only one of the file."""

    grid: Sequence[int]
    """Thread blocks: one to three extents."""

    block: Sequence[int]
    """Threads of a block: one to three extents."""

    arguments: Arguments
    """From `read_arguments`; its buffers are changed in place."""

    sm: int = 86
    """Compute capability that CUDA is compiled for."""

    defines: Mapping[str, str] = field(default_factory=dict)
    """Macros that CUDA is compiled with."""

    shared_bytes: int = 0
    """Dynamic shared memory per block, bytes."""


def emulate_file(launch: FileLaunch, *, check_races: bool = False, budget: int = 20_000_000) -> Counts:
    """Runs one launch of a kernel on the CPU; the buffers are changed in place.

    Args:
        launch: the kernel, and how it is launched.
        check_races: whether a data race in shared memory is an error.
        budget: PTX instructions that a batch of blocks may execute before the kernel is taken for an endless loop.

    Returns:
        Totals by metric, as of `kernrec.ptx.emulate`.

    Raises:
        KernrecError: in one line: what the compiler or the emulator refuses, such as an unsupported instruction, an
            access out of bounds, a deadlock, or a race.
    """
    path = launch.path
    if budget < 1:
        raise UsageError(f"a budget of {budget} instructions: at least 1 is accepted")
    if launch.shared_bytes < 0:
        raise UsageError(f"{launch.shared_bytes} bytes of shared memory: 0 or more are accepted")
    if path.suffix not in (".cu", ".ptx") and path.is_file():
        raise UsageError(f"{path} is neither CUDA nor PTX: a .cu or .ptx file is expected")
    text = read_source(path, "a .cu or .ptx file")
    ptx = text if path.suffix == ".ptx" else compile_source(text, launch.sm, launch.defines, path.name).ptx
    module = parse(ptx)
    entry = select_entry(module, launch.entry, path)
    arguments = launch.arguments
    # A texture that the code declares as a variable is not a parameter.
    variables = {v.name for v in module.variables.values() if v.type in OPAQUE_TYPES}
    order = [a for a in arguments.order if not (isinstance(a, str) and a in arguments.images and a in variables)]
    grid, block = tuple(launch.grid), tuple(launch.block)
    emulated = KernelLaunch(entry, grid, block, order, arguments.buffers, launch.shared_bytes, images=arguments.images)
    return emulate(module, emulated, check_races=check_races, budget=budget)


def read_source(path: Path, expected: str) -> str:
    """The text of a source file.

    Raises:
        UsageError: a file that cannot be read, is too large, or is not text; `expected` says what was.
    """
    try:
        size = path.stat().st_size
        if size > _LARGEST_SOURCE:
            raise UsageError(f"{path} has {size} bytes; a source of at most {_LARGEST_SOURCE} bytes is accepted")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text: {expected} is expected") from None


def select_entry(module: Module, entry: str | None, path: Path) -> str:
    """The kernel named `entry` of the module from file `path`; None: its only kernel.

    Raises:
        UsageError: there is no such kernel, or None and the module does not have exactly one.
    """
    if entry is None:
        if len(module.entries) != 1:
            names = f" ({', '.join(module.entries)})" if module.entries else ""
            raise UsageError(f"{path} has {len(module.entries)} kernels{names}: name one with --entry")
        return module.entries[0]
    if entry not in module.entries:
        raise unknown(f"kernel in {path.name}", entry, module.entries)
    return entry


def _known(dtype: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    if dtype not in known:
        raise unknown("element type", dtype, known)
    return dtype


def _filled(buffer: BufferDescription, draw: np.random.Generator, text: str) -> np.ndarray:
    kind, count = _ELEMENTS[_known(buffer.dtype, _ELEMENTS)], buffer.elements
    if not 1 <= count <= _MOST_ELEMENTS:
        raise UsageError(f"argument {text!r}: 1 to {_MOST_ELEMENTS} elements are accepted")
    if buffer.fill == "zeros":
        return np.zeros(count, dtype=kind)
    if buffer.dtype[0] != "f":
        if buffer.fill:
            raise UsageError(f"argument {text!r}: {buffer.dtype} has no NaN")
        return draw.integers(0, 100, count).astype(kind)
    return np.full(count, np.nan, kind) if buffer.fill else draw.standard_normal(count).astype(kind)
