"""A picture of what was measured: a cell for each GPU and op, as SVG that needs no script.

Everything that comes from a database or bundle is escaped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Of pages with such pictures: it forbids scripts."""
STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; } th, td { padding: .25em .6em; text-align: left; }
td.number { text-align: right; } tr + tr td { border-top: 1px solid #ddd; }
"""
_CELL_W, _CELL_H, _LEFT, _TOP = 92, 26, 170, 30  # pixels
_DARK = 0.55
"""Shade from which on text is white."""


@dataclass(frozen=True)
class Cell:
    """A cell of the picture."""

    text: str
    shade: float
    """From 0, white, to 1."""
    outlined: bool = False
    """Whether it has a border that stands out."""


def head(title: str) -> str:
    """The beginning of a page, up to its heading."""
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
        )
    )


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with its heading; numbers stand at the right."""
    lines = ["<table><tr>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr>"]
    for row in rows:
        cells = []
        for value in row:
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            numeric = ' class="number"' if isinstance(value, (int, float)) else ""
            cells.append(f"<td{numeric}>{escape(text)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join((*lines, "</table>"))


def picture(title: str, cells: Mapping[tuple[str, str], Cell], gpus: Sequence[str], ops: Sequence[str]) -> str:
    """An SVG image.

    Args:
        title: for readers who do not see it.
        cells: by GPU and op; one that is missing is empty.
        gpus: the rows, from the top.
        ops: the columns.
    """
    width, height = _LEFT + _CELL_W * len(ops), _TOP + _CELL_H * len(gpus)
    parts = [f'<svg role="img" width="{width}" height="{height}" font-size="13"><title>{escape(title)}</title>']
    for column, op in enumerate(ops):
        middle = _LEFT + _CELL_W * (column + 0.5)
        parts.append(f'<text x="{middle:g}" y="{_TOP - 10}" text-anchor="middle">{escape(op)}</text>')
    for line, gpu in enumerate(gpus):
        top = _TOP + _CELL_H * line
        parts.append(f'<text x="{_LEFT - 8}" y="{top + 17}" text-anchor="end">{escape(gpu)}</text>')
        for column, op in enumerate(ops):
            cell = cells.get((gpu, op), Cell("", 0.0))
            border = 'stroke="#b8860b" stroke-width="2"' if cell.outlined else 'stroke="#ccc"'
            parts.append(
                f'<rect x="{_LEFT + _CELL_W * column + 1}" y="{top}" width="{_CELL_W - 4}" height="{_CELL_H - 3}"'
                f' fill="#1f6f54" fill-opacity="{cell.shade:.2f}" {border}/>'
            )
            if cell.text:
                color = "#fff" if cell.shade > _DARK else "#222"
                place = f'x="{_LEFT + _CELL_W * (column + 0.5):g}" y="{top + 17}"'
                parts.append(f'<text {place} text-anchor="middle" fill="{color}">{escape(cell.text)}</text>')
    return "\n".join((*parts, "</svg>"))
