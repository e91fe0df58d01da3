"""Print an answer as table, wide table, CSV, JSON or Markdown."""

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from kernrec.cli.table import Column, markdown_lines, print_columns
from kernrec.util.human import flat_rows

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel="Output")]


class Form(StrEnum):
    """Format of a printed answer."""

    TABLE = "table"
    WIDE = "wide"
    CSV = "csv"
    JSON = "json"
    MARKDOWN = "markdown"


def print_table_as(form: Form, title: str, columns: Sequence[Column]) -> None:
    """Print a table as text or in Markdown."""
    if form is Form.MARKDOWN:
        print("\n".join([title, "", *markdown_lines(columns), ""]))
    else:
        print_columns(title, columns, form is Form.WIDE)


def print_json(answer: Any) -> None:
    """Print plain values as JSON."""
    print(json.dumps(answer, indent=2))


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of plain values. Nested values become columns `outer.inner`; configs and launches become text."""
    import csv

    cells = flat_rows(rows)
    writer = csv.DictWriter(sys.stdout, list(cells[0] if cells else ()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
