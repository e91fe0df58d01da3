"""Tables of answers: as many columns as the terminal is wide, the most important ones, and a row on few lines.

A column says how important it is. Where not all fit on a line, the config and what else is marked `below` go to a line
of their own, or to as many as they take; what still does not fit is left out, the least important first (`--wide` shows
all of it). Values stand under their headings at any width. A column that says nothing in any row is left out. Numbers
of one column share a unit, which is in its heading. In a pipe tables are as narrow as on a terminal of 100 characters.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from math import floor, log10
from textwrap import wrap
from typing import Literal

from kernrec.cli.table import in_terminal, rule_character, table_lines, text_width, wide_width, wrapped
from kernrec.util.human import PREFIXES
from kernrec.util.light_dataclass import dataclass

ALWAYS, USUALLY, SELDOM, WIDE = 4, 3, 2, 1
"""How important a column is; one of `WIDE` is shown only where it is asked for."""

GAP, INDENT = "  ", "    "
_NOTHING = ("", "-", "0.0 %")
_STYLES = {"measured": "32", "learned": "36", "prior": "33", "unsure": "2", "marked": "1"}
"""Codes of ANSI terminals: measured green, learned cyan, predicted yellow; what cannot be told apart is dim."""


@dataclass(frozen=True)
class Column:
    """One column with all its cells."""

    name: str
    alignment: Literal["left", "right"]
    cells: Sequence[str]
    importance: int = ALWAYS
    below: bool = False
    """Whether it goes to the second line where a row takes two."""
    styles: Sequence[str] = field(default_factory=tuple)
    """A key of `_STYLES` for each cell, or empty; none for a column without any."""

    @property
    def width(self) -> int:
        """Characters that it takes."""
        return max(map(len, (self.name, *self.cells)))

    def says_nothing(self) -> bool:
        """Whether no cell says anything."""
        return self.importance < ALWAYS and all(cell in _NOTHING for cell in self.cells)


def quantities(
    name: str,
    unit: str,
    values: Sequence[float | None],
    intervals: Sequence[tuple[float, float] | None] | None = None,
    importance: int = ALWAYS,
) -> Column:
    """A column of numbers in one unit, three significant digits; with 90 % intervals where they are given.

    None is an empty cell, or a number without an interval.
    """
    sizes = sorted(abs(value) for value in values if value)
    middle = sizes[len(sizes) // 2] if sizes else 1.0
    scale, prefix = next((pair for pair in PREFIXES if middle >= pair[0] * 0.9995), PREFIXES[-1])
    cells = ["" if value is None else digits(value / scale) for value in values]
    if intervals is not None:
        cells = [
            cell if interval is None else f"{cell} ({digits(interval[0] / scale)} to {digits(interval[1] / scale)})"
            for cell, interval in zip(cells, intervals, strict=True)
        ]
    head = (f"{name} [{prefix}{unit}]" if prefix + unit else name) + (" (90 %)" if intervals is not None else "")
    return Column(head, "right", cells, importance)


def digits(value: float) -> str:
    """Three significant digits without an exponent."""
    if abs(value) >= 999.5:
        digits = len(f"{abs(value):.0f}") - 3
        return f"{round(value, -digits):.0f}"
    shown = f"{float(f'{value:.3g}'):g}"
    return shown if "e" not in shown else f"{value:.{2 - floor(log10(abs(value)))}f}".rstrip("0")


def print_answer_table(title: str, columns: Sequence[Column], wide: bool = False) -> None:
    """Prints a table as wide as the terminal or as 100 characters; with `wide` in a pipe, a row is a line."""
    width = wide_width() if wide else text_width()
    print("\n".join(answer_lines(title, columns, width, wide, in_terminal() and _colored())))


def _colored() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def answer_lines(
    title: str, columns: Sequence[Column], width: int | None, wide: bool = False, colored: bool = False
) -> list[str]:
    """The lines of `print_answer_table`.

    Args:
        title: what the table answers; wrapped where it is too long.
        columns: in the order they are printed.
        width: of the terminal; None for no limit.
        wide: whether everything is shown, on as many lines as it takes.
        colored: whether styles become codes of ANSI terminals.
    """
    lines = wrapped(title, width)
    shown = [column for column in columns if not column.says_nothing()]
    if wide:
        pairs = [(column.name, column.alignment) for column in shown]
        rows = zip(*(column.cells for column in shown), strict=True)
        return lines + table_lines(None, pairs, rows, width)
    first, *others = _arranged([column for column in shown if column.importance > WIDE], width)
    heading = [_line(first, None)] + [INDENT + _line(columns, None) for columns in others]
    body: list[list[str]] = []
    for number in range(len(columns[0].cells)):
        row = [_line(first, number, colored)]
        for below in others:
            row += _below(below, number, width)
        body.append(row)
    plain = [*heading, *(_line(first, number) for number in range(len(body)))]
    plain += [line for row in body for line in row[1:]]
    lines += [*heading, rule_character() * max(map(len, plain))]
    for number, row in enumerate(body):
        lines += ([""] if number and others else []) + row
    return lines


def _arranged(columns: list[Column], width: int | None) -> list[list[Column]]:
    """The columns of each line of a row."""
    if width is None or _fits(columns, width):
        return [columns]
    needed = [column for column in columns if column.importance == ALWAYS]
    if _fits(needed, width):
        return [_without_least(columns, width)]
    first, second = ([column for column in columns if column.below == below] for below in (False, True))
    lines = [_without_least(first, width), []]
    while len(lines[0]) > 1 and not _fits(lines[0], width):  # what matters and still does not fit goes below
        second.append(lines[0].pop())
    for column in _without_least(second, width - len(INDENT)):
        if lines[-1] and not _fits([*lines[-1], column], width - len(INDENT)):
            lines.append([])
        lines[-1].append(column)
    return [line for line in lines if line]


def _without_least(columns: list[Column], width: int) -> list[Column]:
    """The columns that fit, the least important left out, of equals the last."""
    fitting = list(columns)
    while not _fits(fitting, width):
        optional = [column for column in fitting if column.importance < ALWAYS]
        if not optional:
            break
        least = min(column.importance for column in optional)
        fitting.remove([column for column in optional if column.importance == least][-1])
    return fitting


def _fits(columns: Iterable[Column], width: int) -> bool:
    widths = [column.width for column in columns]
    return sum(widths) + len(GAP) * (len(widths) - 1) <= width


def _line(columns: Sequence[Column], number: int | None, colored: bool = False) -> str:
    """The heading (None) or a row of some columns."""
    parts = []
    for column in columns:
        text = column.name if number is None else column.cells[number]
        padded = text.rjust(column.width) if column.alignment == "right" else text.ljust(column.width)
        code = _STYLES.get(column.styles[number], "") if colored and column.styles and number is not None else ""
        parts.append(padded.replace(text, f"\x1b[{code}m{text}\x1b[0m", 1) if code and text else padded)
    return GAP.join(parts).rstrip()


def _below(columns: Sequence[Column], number: int, width: int | None) -> list[str]:
    """The second line of a row; wrapped only where it is wider than the terminal by itself."""
    line = INDENT + _line(columns, number)
    if not line.strip():
        return []
    if width is None or len(line) <= width:
        return [line]
    text = GAP.join(column.cells[number] for column in columns if column.cells[number])
    return [INDENT + part for part in wrap(text, width - len(INDENT), break_on_hyphens=False)]


def markdown_lines(columns: Sequence[Column]) -> list[str]:
    """The table in Markdown, with every column that says something."""
    shown = [replace(column, styles=()) for column in columns if not column.says_nothing()]
    rows = [[column.name for column in shown], ["---:" if c.alignment == "right" else "---" for c in shown]]
    rows += [list(cells) for cells in zip(*(column.cells for column in shown), strict=True)]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
