"""Parse the options from which a spec is drafted, and format the lines of a kernel.toml."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TypeVar

from kernrec.errors import UsageError
from kernrec.util.light_dataclass import dataclass

_Extent = TypeVar("_Extent", int, str)
MARK = '"?"'
"""TOML value that marks a part of a drafted spec that the user must fill in."""


@dataclass(frozen=True)
class LaunchWords:
    """Command-line options that describe a kernel's launch."""

    entry: str | None = None
    """Name of the kernel, or None to select the only kernel of the file."""
    grid: str | None = None
    """Number of blocks along each axis, as comma-separated expressions such as `ceil(n/block_x)`."""
    block: str | None = None
    """Block sizes to try, such as `64,128` or `16x16,32x8`, or one expression for each axis, such as `bx, by`."""
    arguments: Sequence[str] = ()
    """Arguments of the launch, such as `n=4096`, `x=f32[n]` or `x=@values.npy`."""
    tunables: Sequence[str] = ()
    """Macros with the values to try, such as `TILE=1,2,4`."""
    shared: str | None = None
    """Dynamic shared memory in bytes, as an expression."""
    include: Sequence[str] = ()
    """Folders with headers, relative to the folder of the source."""
    defines: Mapping[str, str] = field(default_factory=dict)
    """Values of the compiler's macros, keyed by macro."""
    options: Sequence[str] = ()
    """Options for NVRTC and nvcc, such as `-std=c++20` or `-use_fast_math`."""
    assumed: Sequence[str] = ()
    """Arguments that kernrec added, such as larger sizes of buffers."""
    note: str = ""
    """Note on the origin of macros, options and folders, or an empty string."""

    @property
    def stated(self) -> tuple[str, ...]:
        """Return the user's arguments and options as words of a command line. Omit flags whose origin `note` states."""
        options = {"--grid": [self.grid], "--block": [self.block], "--tune": self.tunables, "--shared": [self.shared]}
        if not self.note:
            defines = [f"{name}={value}" for name, value in self.defines.items()]
            options |= {"-D": [*defines, *self.options], "-I": self.include}
        pairs = [(name, value) for name, values in options.items() for value in values if value is not None]
        return (*self.arguments, *(word for pair in pairs for word in pair))

    @property
    def expressions(self) -> str:
        """Return a text that contains all expressions in which the user may have named dimensions."""
        sizes = [text.partition("=")[2] for text in self.arguments]
        return " ".join([self.grid or "", self.block or "", self.shared or "", *sizes])


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", escaped) + '"'


def one_line(text: str) -> str:
    """Replace each sequence of spaces, line breaks and control characters by one space."""
    return re.sub(r"[\x00-\x20\x7f]+", " ", text)


def refuse_marks(text: str, place: str) -> None:
    """Raise a `UsageError` that lists the marked lines if a spec contains `MARK`."""
    marked = [
        number for number, line in enumerate(text.splitlines(), 1) if MARK in line and not line.lstrip().startswith("#")
    ]
    if marked:
        lines = f"line {marked[0]}" if len(marked) == 1 else f"lines {', '.join(map(str, marked))}"
        raise UsageError(f"{place}: {lines}: replace each {MARK}")


def whole_numbers(wrong: str, text: str) -> list[int]:
    """Parse a comma-separated list of distinct integers. Raise `UsageError(wrong)` for any other text."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"-?\d{1,9}", part) for part in parts) or len(set(parts)) < len(parts):
        raise UsageError(wrong)
    return [int(part) for part in parts]


def blocks_to_try(text: str) -> list[tuple[int, ...]]:
    """Parse distinct blocks such as `64,128` or `16x16,32x8`. Raise `UsageError` if a block exceeds 1024 threads."""
    blocks = []
    for part in text.split(","):
        extents = part.strip().split("x")
        if not 1 <= len(extents) <= 3 or not all(e.isdecimal() and 0 < int(e) <= 1024 for e in extents):
            raise UsageError(f"--block {text!r:.60}: expected blocks to try, such as 64,128,256 or 16x16,32x8")
        blocks.append(tuple(map(int, extents)))
        if math.prod(blocks[-1]) > 1024:
            raise UsageError(f"--block {part.strip()}: {math.prod(blocks[-1])} threads; at most 1024 are allowed")
    return list(dict.fromkeys(blocks))


def short_extents(extents: Sequence[_Extent]) -> tuple[_Extent, ...]:
    """Drop the last extents of a grid or block if they are 1, but keep the first one."""
    count = max((axis for axis, extent in enumerate(extents, 1) if str(extent) != "1"), default=1)
    return tuple(extents[:count])


def three_extents(block: Sequence[int]) -> tuple[int, ...]:
    """Extend a block to three axes."""
    return (*block, 1, 1)[:3]


def split_expressions(text: str) -> list[str]:
    """Split a text at commas that are not inside parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def listed(expressions: Sequence[str]) -> str:
    return f"[{', '.join(text if text == MARK else quoted(text) for text in expressions)}]"
