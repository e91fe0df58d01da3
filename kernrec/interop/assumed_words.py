"""Choose example values for the missing parts of a kernel's launch."""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from kernrec.errors import UsageError
from kernrec.interop.draft import Draft
from kernrec.interop.host_expressions import UnknownError
from kernrec.interop.host_program import HostProgram
from kernrec.interop.spec_text import LaunchWords
from kernrec.kernel.cuda_signature import kernel_body, macros
from kernrec.kernel.expression import identifier
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.profile.launch_arguments import read_structure
from kernrec.ptx.state.results import OUTSIDE

CORRECT = "; if the values are wrong, correct them in:"
_NUMBER = re.compile(r"(\w+)=NUMBER")
_ELEMENTS = re.compile(r"(\w+)=(\w+)\[ELEMENTS\]")
_STRUCTURE = re.compile(r"(\w+)=struct\(FIELDS\), for (\d+) bytes of (.+)")
_PLACE = re.compile(r"off|start|begin|first|idx|index|seed|face|rank|lower|id$", re.IGNORECASE)
_COUNT = re.compile(
    r"iter|step|stage|level|pass|round|mode|flag|depth|radius|halo|pad|dilation|trans|is_", re.IGNORECASE
)
_SINGLE_SIZE, _MATRIX_SIDE = 1 << 20, 1024


class Sizes(NamedTuple):
    """Assumed sizes for a launch with one unknown size, with one matrix side, with two sizes, and with more sizes."""

    single: int
    side: int
    two: int
    more: int


TIMED, CHECKED = Sizes(_SINGLE_SIZE, _MATRIX_SIDE, 1024, 128), Sizes(1000, 100, 100, 20)
"""Sizes for predicting a time, and sizes for finding errors. The latter are not multiples of a usual block size."""
_MOST_ELEMENTS = 1 << 21
_LARGEST_END = 1 << 32
"""Maximum offset in bytes of an out-of-bounds access. For larger offsets, kernrec does not enlarge the buffer."""
_MOST_ENLARGED = 32
"""Maximum number of buffers to enlarge. The launch is emulated again after each enlargement."""
_SHARED = (32768, 49152, 65536, 98304, 163840)
"""Sizes of dynamic shared memory in bytes to try, smallest first."""


def assumed_words(
    missing: Sequence[str],
    source: str,
    kernel: str,
    axes: tuple[int, int],
    threads: int,
    unsized: Mapping[str, str],
    assumed: Sizes = TIMED,
) -> tuple[str, ...] | None:
    """Choose a value for each missing part of a launch, and return the values as arguments of `kernrec analyze`.

    Return None if a missing part, such as a texture, can only be read from a file.

    Args:
        missing: Missing parts as arguments of `kernrec analyze` with placeholders, such as `n=NUMBER`.
        axes: Number of grid axes and number of block axes that the kernel uses, 1 to 3 each.
        threads: Maximum number of threads per block.
        unsized: C++ element type of each buffer of unknown size, keyed by the buffer's kernel parameter.
        assumed: Sizes to choose.
    """
    names = [match[1] for text in missing if (match := _NUMBER.fullmatch(text))]
    sizes = [name for name in names if is_size(name)]
    side = len(sizes) == 1 and (axes[0] > 1 or _is_matrix_side(kernel_body(source, kernel), sizes[0]))
    single = assumed.side if side else assumed.single
    size = single if len(sizes) == 1 else assumed.two if len(sizes) == 2 else assumed.more
    elements = min(size ** len(sizes), _MOST_ELEMENTS) if len(sizes) > 1 else _SINGLE_SIZE
    words = []
    for text in missing:
        if match := _NUMBER.fullmatch(text):
            words.append(f"{match[1]}={size if match[1] in sizes else 0 if _PLACE.search(match[1]) else 1}")
        elif match := re.fullmatch(r"(\w+)=BYTE", text):
            words.append(f"{match[1]}=1")
        elif match := _ELEMENTS.fullmatch(text):
            dtype, count = (match[2], 1) if match[2] != "TYPE" else _elements(source, unsized[match[1]])
            words.append(f"{match[1]}={dtype}[{elements * count}]")
        elif match := _STRUCTURE.fullmatch(text):
            if (fields := _fields(source, match[3], int(match[2]))) is None:
                return None
            words.append(f"{match[1]}=struct({fields})")
        elif match := re.fullmatch(r'--grid, such as (--grid ".+")', text):
            words.append(match[1])
        elif text.startswith("--block"):
            tiles = [tile for tile in _block_of_tiles(source, kernel) if tile.count("x") == axes[1] - 1]
            if assumed is CHECKED and not tiles:  # Another block than the code expects would cause errors.
                return None
            blocks = [*tiles, *{1: ["256"], 2: ["16x16", "8x8"], 3: ["8x8x4", "4x4x4"]}[axes[1]]]
            fits = [block for block in blocks if math.prod(map(int, block.split("x"))) <= threads]
            words.append(f"--block {(fits or [str(threads)])[0]}")
        elif text == "--shared BYTES" and assumed is not CHECKED:
            words.append("--shared 16384")
        elif match := re.fullmatch(r"--tune (\w+)=VALUES", text):
            is_block = axes[1] == 1 and re.search("block|thread|tpb", match[1], re.I)
            words.append(f"--tune {match[1]}={'128,256' if is_block else '16,32'}")
        else:
            return None
    square = side and not any(_ELEMENTS.fullmatch(text) for text in missing)
    return (*words, *(f"{name}=[{sizes[0]}*{sizes[0]}]" for name in unsized if square))


def _block_of_tiles(source: str, kernel: str) -> list[str]:
    """Return the block size with one thread per element of a tile, or an empty list if the code does not show it.

    `blockIdx.x * TILE + threadIdx.x` shows a tile. In `for (j = 0; ...; j += ROWS)` with an index `y + j`, a thread
    handles several rows of the tile.
    """
    body, extents = kernel_body(source, kernel), []
    values = {macro.name: macro.value for macro in macros(source)}
    for axis in sorted(set(re.findall(r"threadIdx\.([xyz])", body))):
        tile = re.search(rf"(?:(\w+)\s*=\s*)?blockIdx\.{axis}\s*\*\s*(\w+)\s*\+\s*threadIdx\.{axis}\b", body)
        if tile is None:
            return []
        rows = re.findall(rf"\b(?:{tile[1]}|threadIdx\.{axis})\s*\+\s*(\w+)", body)
        step = next((m[1] for row in rows if (m := re.search(rf"\b{row}\s*\+=\s*(\w+)", body))), tile[2])
        extents.append(step if step.isdecimal() else str(values.get(step, "")))
    return ["x".join(extents)] if extents and all(extents) else []


def _elements(source: str, kind: str) -> tuple[str, int]:
    """Return (data type, number of elements) of an array that is as large as the structure `kind`."""
    program = HostProgram(source)
    with suppress(UnknownError):
        types = [dtype for _, dtype in program.fields(kind)]
        if len(set(types)) == 1 and "*" not in types[0]:
            return types[0], len(types)
    with suppress(UnknownError):
        return "zeros:f32", max(program.size_of(kind) // 4, 1)
    return "zeros:f32", 1


def bound_along(axis: str, body: str, names: Sequence[str]) -> str | None:
    """Return the size with which a kernel compares its index along an axis, as in `if (column < n)`."""
    index = re.search(rf"\b(\w+)\s*=[^;=,]*\bblockIdx\.{axis}\b", body)
    bounds = re.findall(rf"\b{index[1]}\s*(?:\+\s*\w+\s*)?<\s*(\w+)", body) if index else ()
    return next((bound for bound in map(identifier, bounds) if bound in names), None)


def is_size(name: str) -> bool:
    """Return whether a variable's name suggests a size."""
    return not (_PLACE.search(name) or _COUNT.search(name))


def with_words(words: LaunchWords, added: Sequence[str]) -> LaunchWords:
    """Add the arguments `added` to the user's options."""
    options = {"--grid": words.grid, "--block": words.block, "--shared": words.shared}
    arguments, tunables = list(words.assumed), list(words.tunables)
    for word in added:
        name, _, value = word.partition(" ")
        if name == "--tune":
            tunables.append(value)
        elif name in options:
            options[name] = value.strip('"')
        else:
            arguments.append(word)
    grid, block, shared = options.values()
    return replace(words, grid=grid, block=block, shared=shared, assumed=arguments, tunables=tunables)


def enlarged_words(words: LaunchWords, draft: Draft, error: str) -> LaunchWords | None:
    """Return options with a larger buffer after a kernel read or wrote past the buffer's end.

    Return None if the user or the host code chose the size, or if no larger size helps. `error` is the emulator's
    message.
    """
    match = OUTSIDE.search(error)
    if match is None or int(match[2]) < 0:
        return None
    end, buffer = int(match[1]) + int(match[2]), draft.buffers.get(match[3], "")
    if match[3] == "shared memory" and any(text.startswith("--shared") for text in draft.chosen):
        size = next((size for size in _SHARED if size >= end), None)
        start, word = "--shared", f"--shared {size}" if size else None
    else:
        name, _, kind = buffer.partition("=")
        start, word = f"{name}=", None
        host_code = draft.launch.arguments if draft.launch is not None else ()
        sized = any(text.startswith(start) for text in host_code) and not draft.chosen
        if buffer and not sized and end <= _LARGEST_END:
            # `end` is the end of the accesses so far. Other blocks may read beyond it, so make the buffer larger.
            factor = 8 if any(text.startswith(start) for text in words.assumed) else 2
            elements = 2 ** math.ceil(math.log2(factor * end / ELEMENT_BYTES[kind.removeprefix("zeros:")]))
            word = f"{buffer}[{elements}]"
    others = [text for text in words.assumed if not text.startswith(start)]
    if word is None or word in words.assumed or len(others) >= _MOST_ENLARGED:
        return None
    return replace(words, assumed=(*others, word))


def wrong_values(draft: Draft, gpu: str, error: str) -> UsageError | None:
    """Return an error with a command to correct assumed values, or None if `error` has another cause."""
    access = re.search(r"block \([\d, ]+\) thread \([\d, ]+\) accesses .*?(?:bytes(?= \(address )|in no buffer)", error)
    if access is None or not draft.note:
        return None
    return UsageError(f"{draft.entry} does not run with assumed values: {access[0]}{CORRECT} {draft.command(gpu)}")


def _is_matrix_side(body: str, name: str) -> bool:
    factor = rf"\*\s*{name}\b(?!\s*\*?\s*sizeof)|\b{name}\s*\*\s*(?!sizeof)\w"
    return re.search(rf"{factor}|\bfor\s*\([^;]*=\s*0\s*;[^;]*<=?\s*{name}\b", body) is not None


def _fields(source: str, kind: str, size: int) -> str | None:
    """Return a structure's fields as text, such as `i32:1,f32[1048576]`, or None if the layout is not supported."""
    try:
        fields = HostProgram(source).fields(kind)
    except UnknownError:
        return None
    pointers = any(dtype.endswith("*") for _, dtype in fields)
    texts = []
    for name, dtype in fields:
        if dtype.endswith("*"):
            texts.append(f"{dtype.removesuffix('*')}[{_MOST_ELEMENTS}]")
        else:
            texts.append(f"{dtype}:{_MATRIX_SIDE if pointers and dtype[0] in 'iu' and is_size(name) else 1}")
    text = ",".join(texts)
    return text if len(read_structure(text)[0]) == size else None
