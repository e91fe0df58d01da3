"""Tables on a terminal or in a pipe; Rich is loaded only when one is printed."""

import sys
from collections.abc import Iterable, Sequence


def print_table(
    title: str | None, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], *, fold: bool = False
) -> None:
    """Prints rows of plain text under (name, `left` or `right`) columns; none is cut.

    fold: where room is short every column may fold its cells, not the last one alone.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heading = None if title is None else Text(title, "bold")
    table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=not fold and name != columns[-1][0], overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*map(Text, row))
    # Piped output has no width of its own: as wide as the rows need, so that nothing is cut.
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=360)
    console.print(table)
