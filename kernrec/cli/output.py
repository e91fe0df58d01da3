"""The forms in which commands print an answer: a table, all of it, CSV, JSON or Markdown."""

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from kernrec.cli.answer_table import Column, markdown_lines, print_answer_table
from kernrec.errors import UsageError
from kernrec.util.flat_rows import flat_rows
from kernrec.util.indented_json import json_pieces

AsWide = Annotated[bool, typer.Option("--wide", help="Print every column, and configs with names and values.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV, with the names and units of --json.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print tables in Markdown.")]


class Form(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    WIDE = "wide"
    CSV = "csv"
    JSON = "json"
    MARKDOWN = "markdown"


def form_of(wide: bool, as_csv: bool, as_json: bool, markdown: bool) -> Form:
    """The form of the flags; `UsageError` for two of them."""
    flags = {Form.WIDE: wide, Form.CSV: as_csv, Form.JSON: as_json, Form.MARKDOWN: markdown}
    forms = [form for form, flag in flags.items() if flag]
    if len(forms) > 1:
        raise UsageError(f"--{forms[0]} and --{forms[1]} were both given; an answer is printed in one form")
    return forms[0] if forms else Form.TABLE


def print_table_as(form: Form, title: str, columns: Sequence[Column]) -> None:
    """Prints a table as text or in Markdown."""
    if form is Form.MARKDOWN:
        print("\n".join([title, "", *markdown_lines(columns), ""]))
    else:
        print_answer_table(title, columns, form is Form.WIDE)


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
