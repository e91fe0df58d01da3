"""The static page of `kernrec db info --coverage`: measured layers by card and op as a picture, and the largest gaps.

Names from databases are escaped, and the page has no script: the policy in it forbids any.
"""

from collections.abc import Sequence

from kernrec.measure.card_coverage import CardCoverage, Gap
from kernrec.page.coverage_picture import Cell, head, picture, table

_MOST_GAPS = 30


def coverage_page(cards: Sequence[CardCoverage], gaps: Sequence[Gap]) -> str:
    """The page of what databases hold and of the gaps, the largest first."""
    ops = list(dict.fromkeys(op for card in cards for op in card.ops))
    cells = {
        (card.gpu, op): Cell(
            f"{each.measured} / {each.layers}" if each.layers else f"{each.configs} configs" if each.configs else "",
            each.measured / each.layers if each.layers else 0.0,
            each.recorded > 0,
        )
        for card in cards
        for op, each in card.ops.items()
    }
    names = ("gpu", "op", "layers", "measured", "recorded", "configs", "energies")
    rows = [
        [card.gpu, op, each.layers, each.measured, each.recorded, each.configs, each.energies]
        for card in cards
        for op, each in card.ops.items()
        if each.configs or each.recorded
    ]
    listed = [[gap.arch, gap.op, gap.layers - gap.measured, gap.layers, list(gap.gpus)] for gap in gaps[:_MOST_GAPS]]
    return "\n".join(
        (
            head("What is measured"),
            "<p>Layers of the standard workloads, by GPU and op: measured of all, darker where more are. Cells with a"
            " border have rows that a stack's recorder measured of such layers.</p>",
            picture("Measured layers by GPU and op", cells, [card.gpu for card in cards], ops),
            "<h2>What would help most</h2>",
            "<p>Layers that were measured on no card of an architecture, those that concern most cards first. On one of"
            " them <code>kernrec contribute --budget 10m</code> measures what its models are most unsure of.</p>",
            table(("architecture", "op", "unmeasured", "layers", "cards"), listed),
            "<h2>By GPU and op</h2>",
            table(names, rows),
            "</body></html>",
            "",
        )
    )
