"""Tables as wide as the terminal: a row that does not fit continues on the lines below it, as its heading does.

Rich's tables cut the cells of a recommendation to two letters in 80 columns, and take a fifth of a cold `kernrec gpus`
to import; no cell is cut here.
"""

import shutil
import sys
from collections.abc import Iterable, Sequence
from textwrap import wrap

GAP = "   "
INDENT = "    "


def print_table(title: str | None, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows of plain text under (name, `left` or `right`) columns; nothing is cut.

    In a pipe, which has no width, a row is a line.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(table_lines(title, columns, rows, width)))


def table_lines(
    title: str | None, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], width: int | None
) -> list[str]:
    """The lines of `print_table`, none longer than `width` (None: as long as the rows need).

    Columns that do not fit beside the ones before them go to a line of their own, indented; only a cell that is
    wider than that whole line is wrapped.
    """
    cells = [tuple(row) for row in rows]
    names = tuple(name for name, _ in columns)
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    bands = _bands(widths, width)
    lines = [] if title is None else _wrapped(title, width)

    def banded(row: Sequence[str]) -> Iterable[str]:
        for number, band in enumerate(bands):
            indent = INDENT if number else ""
            if number and not any(row[i] for i in band):
                continue
            if width is not None and len(indent) + widths[band[0]] > width:
                yield from (indent + line for line in _wrapped(row[band[0]], width - len(indent)))
            else:
                padded = (
                    row[i].rjust(widths[i]) if columns[i][1] == "right" else row[i].ljust(widths[i]) for i in band
                )
                yield (indent + GAP.join(padded)).rstrip()

    heading = list(banded(names))
    body = [list(banded(row)) for row in cells]
    rule = rule_character() * max(map(len, heading + [line for row in body for line in row]))
    lines += [*heading, rule]
    for number, row in enumerate(body):
        if number and len(bands) > 1:
            lines.append("")
        lines += row
    return lines


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


def _wrapped(text: str, width: int | None) -> list[str]:
    return [text] if width is None else wrap(text, width, break_on_hyphens=False) or [text]
