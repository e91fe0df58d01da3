"""The forms in which commands print an answer: a table, all of it, CSV, JSON or Markdown."""

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from kernrec.cli.table import Column, markdown_lines, print_columns
from kernrec.util.flat_rows import flat_rows
from kernrec.util.indented_json import json_pieces

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel="Output")]


class Form(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    WIDE = "wide"
    CSV = "csv"
    JSON = "json"
    MARKDOWN = "markdown"


def print_table_as(form: Form, title: str, columns: Sequence[Column]) -> None:
    """Prints a table as text or in Markdown."""
    if form is Form.MARKDOWN:
        print("\n".join([title, "", *markdown_lines(columns), ""]))
    else:
        print_columns(title, columns, form is Form.WIDE)


def print_json(answer: Any) -> None:
    """Prints plain values as JSON."""
    sys.stdout.writelines(json_pieces(answer))
    print()


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints rows of plain values; what is nested becomes columns `outer.inner`, configs and launches a text."""
    import csv

    cells = flat_rows(rows)
    writer = csv.DictWriter(sys.stdout, list(cells[0] if cells else ()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
