"""`kernrec db coverage`: what is measured for which card, and what would help most."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.cli.format import print_line, print_notes
from kernrec.cli.steps import Steps
from kernrec.cli.table import print_table
from kernrec.errors import UsageError, file_errors
from kernrec.util.atomic_write import write_whole
from kernrec.util.human import counted

if TYPE_CHECKING:
    from kernrec.measure.card_coverage import CardCoverage, Gap

_SHOWN = 8
"""Rows of what would help."""


def coverage(
    gpu: Annotated[str | None, typer.Option("--gpu", help="One card: its layers, and what to measure there.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with the coverage as a picture.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    db: Annotated[
        Path | None, typer.Option("--db", help="Database. Default: your own, and what was pulled from remotes.")
    ] = None,
) -> None:
    """Show what is measured for which card, and what would help most.

    Counted are layers of the standard workloads, by card; then by architecture and op those that nobody measured.

    With --gpu: the layers of one card whose measurement would help most, as `kernrec contribute` decides.
    """
    from kernrec.store import Stack

    if gpu is not None:
        if html is not None:
            raise UsageError("--html is of all cards; leave out --gpu")
        _show_card(gpu, db or paths.user_database(), as_json)
        return
    from kernrec.measure.card_coverage import cards_coverage, gaps

    with Steps("counting what is measured"):
        stack = Stack(None if db is None else [db])
        cards = cards_coverage(stack)
        open_gaps = gaps(stack)
    if html is not None:
        from kernrec.page.coverage_page import coverage_page

        with file_errors(html, "written"):
            write_whole(html, coverage_page(cards, open_gaps).encode(), shared=True)
    if as_json:
        answer = {"cards": [asdict(card) for card in cards], "gaps": [asdict(gap) for gap in open_gaps]}
        print(json.dumps(answer, indent=2))
        return
    _print_cards(cards)
    _print_gaps(open_gaps)


def _print_cards(cards: "list[CardCoverage]") -> None:
    names = ("measured", "recorded", "layers", "configs", "energies")
    cells = []
    for card in cards:
        sums = {name: sum(getattr(op, name) for op in card.ops.values()) for name in names}
        if sums["configs"] or sums["recorded"]:
            cells.append([card.gpu, *(f"{value:,}" for value in sums.values()), card.last_measured or "never"])
    columns = [("gpu", "left"), *((name, "right") for name in names), ("last measured", "left")]
    print_table("layers of the standard workloads", columns, cells)
    if others := len(cards) - len(cells):
        print_notes(
            [f"{counted(others, 'card')} more have recorded rows of other problems (`kernrec db info --shipped`)"]
        )


def _print_gaps(gaps: "list[Gap]") -> None:
    columns = [("architecture", "left"), ("op", "left"), ("unmeasured", "right"), ("cards", "left")]
    cells = [[gap.arch, gap.op, str(gap.layers - gap.measured), _some(gap.gpus)] for gap in gaps[:_SHOWN]]
    print_table("what would help most: `kernrec contribute` on one of the cards", columns, cells)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _show_card(gpu: str, database: Path, as_json: bool) -> None:
    from kernrec.measure.card_coverage import card_gains

    with Steps(f"weighing what measurements on {gpu} would bring"):
        gains = card_gains(gpu, database)
    if as_json:
        rows = [
            {"layer": gain.name, "problem": gain.problem.key, "regret": gain.regret, "weight": gain.weight,
             "measured": gain.measured}
            for gain in gains
        ]  # fmt: skip
        print(json.dumps({"gpu": gpu, "layers": rows}, indent=2))
        return
    total = sum(gain.regret * gain.weight for gain in gains)
    measured = sum(gain.measured > 0 for gain in gains)
    expected = f"choices are expected to be {100 * total:.1f} % slower than the best"
    print_line(f"{measured} of {len(gains)} layers are measured; {expected}")
    columns = [("op", "left"), ("layer", "left"), ("measured", "right"), ("regret", "right")]
    cells = [[gain.problem.op, gain.name, str(gain.measured), f"{100 * gain.regret:.1f} %"] for gain in gains[:_SHOWN]]
    print_table("what would help most", columns, cells)
