"""The static page of an index of contributed bundles: its coverage as a picture, and what each GPU has by kernel.

Everything that comes from a bundle is escaped, and the page has no script: the policy in it forbids any.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

from kernrec.page.coverage_picture import Cell, head, picture, table
from kernrec.store.share.index import IndexReport, shown_scales

_FULL = 1e5
"""Rows of the darkest cell of the picture."""


def index_page(report: IndexReport) -> str:
    """The page of an index that was checked."""
    names = ("gpu", "op", "kernel", "problems", "configs", "rows", "energies", "signers")
    notes = [*shown_scales(report.scales), *(f"{name}: refused: {reason}" for name, reason in report.bad.items())]
    good = report.bundles - len(report.bad)
    parts = [
        head("Contributed measurements"),
        f"<p>{good} bundles. The picture shows rows by GPU and op, darker where there are more.</p>",
        _picture(report.rows),
        "<h2>By kernel</h2>",
        table(names, [[row[name] for name in names] for row in report.rows]),
    ]
    if notes:
        parts += ["<h2>Notes</h2><ul>", *(f"<li>{escape(note)}</li>" for note in notes), "</ul>"]
    return "\n".join((*parts, "</body></html>", ""))


def _picture(rows: Sequence[Mapping[str, object]]) -> str:
    """A cell for each GPU and op, as dark as the logarithm of its rows."""
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        key = str(row["gpu"]), str(row["op"])
        counts[key] = counts.get(key, 0) + int(str(row["rows"]))
    cells = {key: Cell(f"{count:,}", min(1.0, math.log1p(count) / math.log1p(_FULL))) for key, count in counts.items()}
    return picture("Rows by GPU and op", cells, sorted({gpu for gpu, _ in counts}), sorted({op for _, op in counts}))
