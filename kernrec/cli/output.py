"""Print answers as tables, CSV or JSON on standard output, and notes on standard error.

Cells are never truncated. If a table does not fit on a line, the least important columns are dropped. Then columns
marked `below` move to a second line, and finally long text wraps.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain, zip_longest
from math import floor, log10
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from kernrec.util.human import PREFIXES, flat_rows
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.recommender import Recommendation
    from kernrec.recommender.result import Foreign

ALWAYS, USUALLY, SELDOM = 3, 2, 1
"""Importance of a column. Narrow tables keep columns that are `ALWAYS` important."""
GAP, INDENT = "  ", "    "
PIPE_WIDTH = 100
"""Characters per line if standard output is not a terminal."""
_NARROWEST = 20
"""Minimum width of a wrapped cell, in characters."""
_NOTHING = ("", "-", "0.0 %")


@dataclass(frozen=True)
class Column:
    """Column of a table with all its cells."""

    name: str
    alignment: Literal["left", "right"]
    cells: Sequence[str]
    importance: int = ALWAYS
    below: bool = False
    """Whether the column may move to a second line."""

    @property
    def width(self) -> int:
        return max(map(len, (self.name, *self.cells)))


Band = list[tuple[Column, int]]
"""Columns that share a line, with their widths in characters."""


def quantities(
    name: str, unit: str, values: Sequence[float | None], importance: int = ALWAYS, intervals: bool = True
) -> Column:
    """Return a column of numbers with three significant digits and a common unit prefix.

    Args:
        unit: SI unit of the values, such as `s`.
        values: Number or `Estimate` of each row in this unit. None leaves the cell empty.
        intervals: Whether to show the 90 % intervals of estimates.
    """
    sizes = sorted(abs(value) for value in values if value)
    middle = sizes[len(sizes) // 2] if sizes else 1.0
    scale, prefix = next((pair for pair in PREFIXES if middle >= pair[0] * 0.9995), PREFIXES[-1])
    cells = ["" if value is None else digits(value / scale) for value in values]
    head = f"{name} [{prefix}{unit}]" if prefix + unit else name
    if intervals and any(hasattr(value, "low") for value in values):
        head += " (90 %)"
        ends = [(getattr(value, "low", None), getattr(value, "high", None)) for value in values]
        cells = [
            cell if low is None or high is None else f"{cell} ({digits(low / scale)} to {digits(high / scale)})"
            for cell, (low, high) in zip(cells, ends, strict=True)
        ]
    return Column(head, "right", cells, importance)


def digits(value: float) -> str:
    """Format a number with three significant digits and without an exponent."""
    if abs(value) >= 999.5:
        places = len(f"{abs(value):.0f}") - 3
        return f"{round(value, -places):.0f}"
    shown = f"{float(f'{value:.3g}'):g}"
    return shown if "e" not in shown else f"{value:.{2 - floor(log10(abs(value)))}f}".rstrip("0")


def text_width(stream: TextIO | None = None) -> int:
    """Return the characters per line of a stream."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isascii() and columns.isdigit() else 0
    if not width:
        try:
            width = os.get_terminal_size((stream or sys.stdout).fileno()).columns
        except (OSError, ValueError, AttributeError):  # The stream is not a terminal.
            width = 0
    return max(width or PIPE_WIDTH, _NARROWEST)


def print_table(title: str | None, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table with the headings `names`."""
    texts = [[", ".join(map(str, v)) if isinstance(v, list) else str(v) for v in row] for row in rows]
    columns = []
    for number, name in enumerate(names):
        cells = [row[number] for row in texts]
        numbers = all(_NUMBER.fullmatch(cell) for cell in cells if cell)
        columns.append(Column(name, "right" if numbers else "left", cells))
    print_columns(title, columns)


_NUMBER = re.compile(r"[-+]?[\d,.]+( [a-zA-Z%/]+)?( to [\d.]+)?|-|cannot run")


def print_columns(title: str | None, columns: Sequence[Column]) -> None:
    """Print a table that fits the width of standard output."""
    print("\n".join(column_lines(title, columns, text_width())))


def print_rows(title: str | None, rows: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> None:
    """Print rows, which map column names to values, as a table. The default columns are those of the first row."""
    if not rows:
        return
    names = names or list(rows[0])
    print_table(title, [name.replace("_", " ") for name in names], [[row[name] for name in names] for row in rows])


def column_lines(title: str | None, columns: Sequence[Column], width: int) -> list[str]:
    """Return the lines of a table. `width` is the maximum number of characters per line."""
    # Drop columns whose cells are all empty or zero.
    shown = [each for each in columns if each.importance == ALWAYS or any(cell not in _NOTHING for cell in each.cells)]
    bands = _arranged(shown, width)
    heading = [line for number, band in enumerate(bands) for line in _lines(band, None, INDENT * (number > 0))]
    body = [
        [
            line
            for number, band in enumerate(bands)
            for line in _lines(band, row, INDENT * (number > 0))
            if line.strip() or not number
        ]
        for row in range(len(columns[0].cells))
    ]
    apart = len(bands) > 1 or any(len(lines) > 1 for lines in body)
    result = [] if title is None else wrapped(title, width)
    result += [*heading, rule_character() * max(map(len, chain(heading, *body)))]
    for number, lines in enumerate(body):
        result += ([""] if number and apart else []) + lines
    return result


def _arranged(columns: Sequence[Column], width: int) -> list[Band]:
    if _fits([column for column in columns if column.importance == ALWAYS], width):
        return [[(column, column.width) for column in _without_least(columns, width)]]
    below = [column for column in columns if column.below]
    if not below and (widths := _narrowed(columns, width)) is not None:
        return [list(zip(columns, widths, strict=True))]
    first = [column for column in columns if column not in below]
    if below:
        first = _without_least(first, width)
        while len(first) > 1 and not _fits(first, width):  # Move columns to the second line.
            below.append(first.pop())
        below = _without_least(below, width - len(INDENT))
    bands: list[Band] = [[]]
    for number, column in enumerate([*first, *below]):
        room = width - len(INDENT) * (len(bands) > 1)
        used = [each for each, _ in bands[-1]]
        if used and (number == len(first) or not _fits([*used, column], room)):
            bands.append([])
            room = width - len(INDENT)
        bands[-1].append((column, min(column.width, room)))
    return bands


def _without_least(columns: Sequence[Column], width: int) -> list[Column]:
    fitting = list(columns)
    while not _fits(fitting, width) and (optional := [column for column in fitting if column.importance < ALWAYS]):
        least = min(column.importance for column in optional)
        fitting.remove([column for column in optional if column.importance == least][-1])
    return fitting


def _fits(columns: Sequence[Column], width: int) -> bool:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1) <= width


def _narrowed(columns: Sequence[Column], width: int) -> list[int] | None:
    """Return column widths at which a row fits in `width` characters, or None if a row cannot fit."""
    room = width - len(GAP) * (len(columns) - 1)
    widths, least = [column.width for column in columns], []
    for column in columns:
        longest_word = max((len(word) for cell in (column.name, *column.cells) for word in cell.split()), default=0)
        least.append(column.width if column.alignment == "right" else min(column.width, max(_NARROWEST, longest_word)))
    if sum(least) > room:
        return None
    while (excess := sum(widths) - room) > 0:
        number = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i])
        widest = widths[number]
        others = [value for i, value in enumerate(widths) if value < widest and widths[i] > least[i]]
        widths[number] = max(least[number], widest - excess, min(widest - 1, max(others, default=0)))
    return widths


def _lines(band: Band, row: int | None, indent: str) -> Iterator[str]:
    """Yield the lines of row number `row`, or of the heading if `row` is None."""
    texts = [column.name if row is None else column.cells[row] for column, _ in band]
    parts = [
        wrapped(text, width) if len(text) > width else [text] for text, (_, width) in zip(texts, band, strict=True)
    ]
    for line in zip_longest(*parts, fillvalue=""):
        cells = (
            text.rjust(width) if column.alignment == "right" else text.ljust(width)
            for text, (column, width) in zip(line, band, strict=True)
        )
        yield (indent + GAP.join(cells)).rstrip()


def rule_character() -> str:
    """Return the character for horizontal rules that standard output can encode."""
    try:
        "─".encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return "-"
    return "─"


def wrapped(text: str, width: int | None, start: str = "", below: str = "") -> list[str]:
    """Wrap a text into lines. Long problem keys break after commas.

    Args:
        width: Maximum characters per line, or None to leave the text on one line.
        start: Beginning of the first line.
        below: Beginning of all further lines.
    """
    if width is None:
        return [text]
    room = width - len(below)
    words = " ".join(_pieces(word, room) if len(word) > room else word for word in text.split(" "))
    return wrap(words, width, initial_indent=start, subsequent_indent=below, break_on_hyphens=False) or [text]


def _pieces(word: str, width: int) -> str:
    pieces = []
    while len(word) > width and (end := word.rfind(",", 0, width) + 1):
        pieces.append(word[:end])
        word = word[end:]
    return " ".join([*pieces, word])


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel="Output")]


class Form(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def print_json(answer: Any) -> None:
    print(json.dumps(answer, indent=2))


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as CSV. Nested values become columns such as `outer.inner`, or text."""
    import csv

    cells = flat_rows(rows)
    writer = csv.DictWriter(sys.stdout, list(cells[0] if cells else ()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)


_UNKNOWN_DAY = "1970-01-01"


class NotePrinter:
    """Prints each note once on standard error, followed by its explanation if `why` is true."""

    def __init__(self, why: bool = False) -> None:
        self._why = why
        self._seen: set[str] = set()

    def print(self, notes: Iterable[str]) -> None:
        for note in notes:
            if note in self._seen:
                continue
            self._seen.add(note)
            print_line(f"note: {one_line(note)}", sys.stderr)
            if self._why and (explanation := getattr(note, "why", "")):
                lines = wrapped(one_line(explanation), text_width(sys.stderr), "    ", "    ")
                print("\n".join(lines), file=sys.stderr)


def print_notes(notes: Iterable[str]) -> None:
    NotePrinter().print(notes)


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Print a line, wrapped to the width of the stream."""
    stream = stream or sys.stdout
    if (stream is not sys.stderr or stream.isatty()) and len(text) > (width := text_width(stream)):
        start = text[: len(text) - len(text.lstrip())]
        text = "\n".join(wrapped(text.lstrip(), width, start, start + "    "))
    print(text, file=stream)


def one_line(text: str) -> str:
    """Replace control characters, such as line breaks in quoted files, by spaces."""
    return text if text.isprintable() else " ".join("".join(c if c.isprintable() else " " for c in text).split())


def source_text(recommendation: "Recommendation | Foreign") -> str:
    """Describe the source of a row's latency and energy."""
    if (
        recommendation.energy_j is None
        or recommendation.energy_j.source == recommendation.latency_s.source
        or recommendation.source == "transferred"
    ):
        return recommendation.source
    return f"{recommendation.source}, energy {recommendation.energy_j.source}"


def measurement_text(recommendation: "Recommendation | Foreign") -> str:
    """Describe where, when and by whom a config was measured. Return an empty string if it was not measured."""
    if (measurement := recommendation.measurement) is None:
        return ""
    from kernrec.recommender.tabular import range_text

    sessions = "1 session" if measurement.sessions == 1 else f"{measurement.sessions} sessions, last"
    of_title = getattr(getattr(recommendation, "gpu", None), "title", None)  # The table's title already names the GPU.
    device = "" if measurement.device in (None, of_title) else f"{measurement.device}, "
    signers = ", ".join(str(signer["name"]) for signer in recommendation.signed_by)
    shared = f", {measurement.database} ({signers})" if signers else ""
    day = f"{measurement.measured_at:%Y-%m-%d}"
    when = f" {day}" if day > _UNKNOWN_DAY else ""
    people = ""
    if (ends_s := recommendation.contributors_latency_s) is not None:
        rescaled = f", {measurement.rescaled} rescaled to this GPU's typical speed" if measurement.rescaled else ""
        people = f", {measurement.contributors} contributors ({range_text(ends_s[0], ends_s[1], 's')}){rescaled}"
    return f"{device}{sessions.removesuffix(', last') if not when else sessions}{when}{shared}{people}"
