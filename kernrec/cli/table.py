"""Tables as wide as the terminal, 100 characters in a pipe: long cells go on below within their column.

Where even that is too wide, a row continues on the lines below it, as its heading does. No cell is cut.

Rich's tables cut the cells of a recommendation to two letters in 80 columns, and take a fifth of a cold `kernrec gpus`
to import.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import TextIO

GAP = "  "
INDENT = "    "
PIPE_WIDTH = 100
"""Characters of a line in a pipe, which has no width."""
_NARROWEST = 20
"""Characters that a cell is wrapped to at least."""


def text_width(stream: TextIO | None = None) -> int:
    """Characters that fit a line of a stream (default: standard output): `COLUMNS`, the terminal's, or 100."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isascii() and columns.isdigit() else 0
    if not width:
        try:
            width = os.get_terminal_size((stream or sys.stdout).fileno()).columns
        except (OSError, ValueError, AttributeError):  # a pipe, a stream of a program, or none
            width = 0
    return max(width or PIPE_WIDTH, _NARROWEST)


def in_terminal() -> bool:
    """Whether standard output is a terminal; it may be closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def wide_width() -> int | None:
    """Characters of a line where everything was asked for: in a pipe as many as it takes, so that a row is a line."""
    return text_width() if in_terminal() else None


def print_table(
    title: str | None, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], wide: bool = False
) -> None:
    """Prints rows of plain text under (name, `left` or `right`) columns; nothing is cut."""
    print("\n".join(table_lines(title, columns, rows, wide_width() if wide else text_width())))


def table_lines(
    title: str | None, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], width: int | None
) -> list[str]:
    """The lines of `print_table`, none longer than `width` (None: as long as the rows need).

    Text in left-aligned columns is wrapped within the column, the widest first. Columns that do not fit even then go to
    a line of their own, indented; only a cell that is wider than that whole line is wrapped there.
    """
    cells = [tuple(row) for row in rows]
    names = tuple(name for name, _ in columns)
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    narrowed = _narrowed(widths, names, cells, columns, width)
    bands = [list(range(len(widths)))] if narrowed else _bands(widths, width)
    widths = narrowed or widths
    lines = [] if title is None else wrapped(title, width)

    def in_columns(row: Sequence[str]) -> Iterator[str]:
        for parts in zip_longest(*map(wrapped, row, widths), fillvalue=""):
            yield GAP.join(_aligned(parts[i], widths[i], columns[i][1]) for i in range(len(parts))).rstrip()

    def banded(row: Sequence[str]) -> Iterator[str]:
        for number, band in enumerate(bands):
            indent = INDENT if number else ""
            if number and not any(row[i] for i in band):
                continue
            if width is not None and len(indent) + widths[band[0]] > width:
                yield from (indent + line for line in wrapped(row[band[0]], width - len(indent)))
            else:
                padded = (_aligned(row[i], widths[i], columns[i][1]) for i in band)
                yield (indent + GAP.join(padded)).rstrip()

    laid_out = in_columns if narrowed else banded
    heading = list(laid_out(names))
    body = [list(laid_out(row)) for row in cells]
    rule = rule_character() * max(map(len, heading + [line for row in body for line in row]))
    lines += [*heading, rule]
    apart = any(len(row) > 1 for row in body)
    for number, row in enumerate(body):
        if number and apart:
            lines.append("")
        lines += row
    return lines


def _aligned(text: str, width: int, alignment: str) -> str:
    return text.rjust(width) if alignment == "right" else text.ljust(width)


def _narrowed(
    widths: Sequence[int],
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    columns: Sequence[tuple[str, str]],
    width: int | None,
) -> list[int] | None:
    """Widths with which a row fits a line, its left-aligned cells wrapped; None where there are none."""
    if width is None:
        return list(widths)
    room = width - len(GAP) * (len(widths) - 1)
    least = []
    for number, (whole, (_, alignment)) in enumerate(zip(widths, columns, strict=True)):
        longest_word = max((len(word) for row in (names, *cells) for word in row[number].split()), default=0)
        least.append(whole if alignment == "right" else min(whole, max(_NARROWEST, longest_word)))
    if sum(least) > room:
        return None
    fitting = list(widths)
    while (excess := sum(fitting) - room) > 0:
        number = max((i for i in range(len(fitting)) if fitting[i] > least[i]), key=lambda i: fitting[i])
        widest = fitting[number]
        others = [value for i, value in enumerate(fitting) if value < widest and fitting[i] > least[i]]
        fitting[number] = max(least[number], widest - excess, min(widest - 1, max(others, default=0)))
    return fitting


def rule_character() -> str:
    """A line that standard output can show: `-` where it has no Unicode, as in a pipe on Windows."""
    try:
        "─".encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return "-"
    return "─"


def _bands(widths: Sequence[int], width: int | None) -> list[list[int]]:
    """The columns of each line of a row, by their numbers."""
    bands = [[0]]
    used = widths[0]
    for number, column in enumerate(widths[1:], 1):
        used += len(GAP) + column
        if width is not None and used > width:
            bands.append([])
            used = len(INDENT) + column
        bands[-1].append(number)
    return bands


def wrapped(text: str, width: int | None, start: str = "", below: str = "") -> list[str]:
    """The lines of a text; None: one. A problem that is wider than a line goes on behind a comma, not within a name.

    start, below: what the first line and the other ones begin with.
    """
    if width is None:
        return [text]
    room = width - len(below)
    words = " ".join(_pieces(word, room) if len(word) > room else word for word in text.split(" "))
    return wrap(words, width, initial_indent=start, subsequent_indent=below, break_on_hyphens=False) or [text]


def _pieces(word: str, width: int) -> str:
    """A word with a space behind the last comma of each line."""
    pieces = []
    while len(word) > width and (place := word.rfind(",", 0, width) + 1):
        pieces.append(word[:place])
        word = word[place:]
    return " ".join([*pieces, word])
