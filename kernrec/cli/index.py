"""`kernrec db index`: a folder of contributed bundles, checked and listed."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kernrec.cli.format import print_notes
from kernrec.cli.steps import Steps
from kernrec.cli.table import print_table
from kernrec.errors import file_errors
from kernrec.util.atomic_write import write_whole
from kernrec.util.human import counted


def index(
    folder: Annotated[Path, typer.Argument(help="Of bundles by GPU, such as datasets/contributed.")],
    html: Annotated[Path | None, typer.Option(help="Also write a page with the coverage as a picture.")] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Also write index.json, which readers of a web server need.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check every bundle of an index, and list what they hold by GPU, op and kernel, and whose it is.

    A bundle that is wrong (name, signature, schema, physics), or repeats another, is refused: the exit status is 1.

    Bundles whose times are not as those of others on the same card are named.
    """
    from kernrec.store.share.index import check_index, shown_cards, shown_scales, write_list

    with Steps(f"checking the bundles of {folder}"):
        report = check_index(folder)
    good = report.bundles - len(report.bad)
    if as_json:
        cards = [asdict(card) for card in report.cards]
        answer = {"bundles": good, "bad": report.bad, "rows": report.rows, "scales": report.scales, "cards": cards}
        print(json.dumps(answer, indent=2))
    elif report.rows:
        names = ("gpu", "op", "kernel", "problems", "configs", "rows", "energies", "signers")
        columns = [(name, "right" if name in names[3:7] else "left") for name in names]
        cells = [
            [", ".join(value) if isinstance(value := row[name], list) else str(value) for name in names]
            for row in report.rows
        ]
        print_table(None, columns, cells)
    if not as_json:
        print(f"{counted(good, 'bundle')}" + (f", {len(report.bad)} refused" if report.bad else ""))
    if html is not None:
        from kernrec.page.index_page import index_page

        with file_errors(html, "written"):
            write_whole(html, index_page(report).encode(), shared=True)
    if list_:
        write_list(folder, report.bad)
    print_notes(shown_scales(report.scales))
    print_notes(shown_cards(report.cards))
    print_notes(f"{name}: refused: {reason}" for name, reason in sorted(report.bad.items()))
    if report.bad:
        raise typer.Exit(1)
