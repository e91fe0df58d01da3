"""Parse and format texts for `spec_draft`: lists of blocks and expressions, and lines of a kernel.toml."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernrec.errors import UsageError

MARK = '"?"'
"""Marker of a part to fill in, as a TOML value."""


@dataclass(frozen=True)
class LaunchWords:
    """User's specification of a kernel's launch, in the form of the command line."""

    entry: str | None = None
    """Name of the kernel; None for the only one."""
    grid: str | None = None
    """Blocks of the grid, an expression for each axis: `ceil(n/block_x)`."""
    block: str | None = None
    """Block sizes to try, `64,128` or `16x16,32x8`, or one expression for each axis: `bx, by`."""
    arguments: Sequence[str] = ()
    """Arguments: `n=4096`, `x=f32[n]`, `x=@values.npy`."""
    tunables: Sequence[str] = ()
    """Macros with the values to try: `TILE=1,2,4`."""
    shared: str | None = None
    """Dynamic shared memory in bytes, an expression."""
    include: Sequence[str] = ()
    """Folders with headers, relative to the source's."""
    defines: Mapping[str, str] = field(default_factory=dict)
    """Macros that the source is compiled with."""
    options: Sequence[str] = ()
    """Options of NVRTC and nvcc: `-std=c++20`, `-use_fast_math`."""
    note: str = ""
    """Origin of macros, options and folders that the user did not pass."""

    @property
    def expressions(self) -> str:
        """Return the user's texts that may name a dimension."""
        sizes = [text.partition("=")[2] for text in self.arguments]
        return " ".join([self.grid or "", self.block or "", self.shared or "", *sizes])


class Lines:
    """Lines of a file, in order."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, *lines: str) -> None:
        self._lines += lines

    @property
    def text(self) -> str:
        """All lines, each with a line end."""
        return "".join(f"{line}\n" for line in self._lines)


def quoted(text: str) -> str:
    """Return a TOML string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", escaped) + '"'


def one_line(text: str) -> str:
    """Return a text for a TOML comment: each run of spaces, line ends and control characters becomes one space."""
    return re.sub(r"[\x00-\x20\x7f]+", " ", text)


def refuse_marks(text: str, place: str) -> None:
    """Raise `UsageError` with the line numbers if a spec still has parts to fill in."""
    marked = [
        number for number, line in enumerate(text.splitlines(), 1) if MARK in line and not line.lstrip().startswith("#")
    ]
    if marked:
        lines = f"line {marked[0]}" if len(marked) == 1 else f"lines {', '.join(map(str, marked))}"
        raise UsageError(f"{place}: {lines}: replace each {MARK}")


def whole_numbers(wrong: str, text: str) -> list[int]:
    """Return the distinct integers of a comma-separated list. Raises `UsageError` with the message `wrong`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"-?\d{1,9}", part) for part in parts) or len(set(parts)) < len(parts):
        raise UsageError(wrong)
    return [int(part) for part in parts]


def blocks_to_try(text: str) -> list[tuple[int, ...]]:
    """Return the distinct blocks of a text such as `64,128` or `16x16,32x8`. Raises `UsageError` for other texts."""
    blocks = []
    for part in text.split(","):
        extents = part.strip().split("x")
        if not 1 <= len(extents) <= 3 or not all(e.isdecimal() and 0 < int(e) <= 1024 for e in extents):
            raise UsageError(f"--block {text!r:.60}: expected blocks to try, such as 64,128,256 or 16x16,32x8")
        blocks.append(tuple(map(int, extents)))
        if math.prod(blocks[-1]) > 1024:
            raise UsageError(f"--block {part.strip()}: {math.prod(blocks[-1])} threads; at most 1024 are allowed")
    return list(dict.fromkeys(blocks))


def three_extents(block: Sequence[int]) -> tuple[int, ...]:
    """Return a block along all three axes."""
    return (*block, 1, 1)[:3]


def split_expressions(text: str) -> list[str]:
    """Return expressions separated by commas outside of parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def listed(expressions: Sequence[str]) -> str:
    """Return expressions as a TOML list."""
    return f"[{', '.join(text if text == MARK else quoted(text) for text in expressions)}]"
