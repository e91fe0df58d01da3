"""The static page of an index of contributed bundles: its coverage as a picture, and what each GPU has by kernel.

Everything that comes from a bundle is escaped, and the page has no script: the policy in it forbids any.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

from kernrec.store.share.index import IndexReport, shown_scales

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; } th, td { padding: .25em .6em; text-align: left; }
td.number { text-align: right; } tr + tr td { border-top: 1px solid #ddd; }
"""
_CELL_W, _CELL_H, _LEFT, _TOP = 92, 26, 170, 30  # pixels
_FULL = 1e5
"""Rows of the darkest cell of the picture."""


def index_page(report: IndexReport) -> str:
    """The page of an index that was checked."""
    names = ("gpu", "op", "kernel", "problems", "configs", "rows", "energies", "signers")
    notes = [*shown_scales(report.scales), *(f"{name}: refused: {reason}" for name, reason in report.bad.items())]
    good = report.bundles - len(report.bad)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>Contributed measurements</title><style>{_STYLE}</style></head><body>",
        "<h1>Contributed measurements</h1>",
        f"<p>{good} bundles. The picture shows rows by GPU and op, darker where there are more.</p>",
        _picture(report.rows),
        "<h2>By kernel</h2><table><tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>",
        *(_row([row[name] for name in names]) for row in report.rows),
        "</table>",
    ]
    if notes:
        parts += ["<h2>Notes</h2><ul>", *(f"<li>{escape(note)}</li>" for note in notes), "</ul>"]
    return "\n".join((*parts, "</body></html>", ""))


def _row(values: Sequence[object]) -> str:
    cells = []
    for value in values:
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        numeric = ' class="number"' if isinstance(value, int) else ""
        cells.append(f"<td{numeric}>{escape(text)}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _picture(rows: Sequence[Mapping[str, object]]) -> str:
    """A cell for each GPU and op, as dark as the logarithm of its rows."""
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        key = str(row["gpu"]), str(row["op"])
        counts[key] = counts.get(key, 0) + int(str(row["rows"]))
    gpus, ops = sorted({gpu for gpu, _ in counts}), sorted({op for _, op in counts})
    width, height = _LEFT + _CELL_W * len(ops), _TOP + _CELL_H * len(gpus)
    cells = [f'<svg role="img" width="{width}" height="{height}" font-size="13"><title>Rows by GPU and op</title>']
    for column, op in enumerate(ops):
        middle = _LEFT + _CELL_W * (column + 0.5)
        cells.append(f'<text x="{middle:g}" y="{_TOP - 10}" text-anchor="middle">{escape(op)}</text>')
    for line, gpu in enumerate(gpus):
        top = _TOP + _CELL_H * line
        cells.append(f'<text x="{_LEFT - 8}" y="{top + 17}" text-anchor="end">{escape(gpu)}</text>')
        for column, op in enumerate(ops):
            count = counts.get((gpu, op), 0)
            shade = min(1.0, math.log1p(count) / math.log1p(_FULL))
            cells.append(
                f'<rect x="{_LEFT + _CELL_W * column}" y="{top}" width="{_CELL_W - 2}" height="{_CELL_H - 2}"'
                f' fill="#1f6f54" fill-opacity="{shade:.2f}" stroke="#ccc"/>'
            )
            if count:
                color = "#fff" if shade > 0.55 else "#222"
                middle = _LEFT + _CELL_W * (column + 0.5)
                cells.append(
                    f'<text x="{middle:g}" y="{top + 17}" text-anchor="middle" fill="{color}">{count:,}</text>'
                )
    return "\n".join((*cells, "</svg>"))
