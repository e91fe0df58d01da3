"""Read untrusted CSV with column names in its first line."""

import csv
import io
from collections.abc import Iterator, Mapping

MOST_ROWS = 2_000_000


def csv_rows(text: str) -> tuple[list[str], Iterator[Mapping[str, str]]]:
    """Return (column names, iterator over rows as dictionaries of stripped values by column).

    Raises:
        ValueError: the text is not CSV, a line has another number of values, or there are more than `MOST_ROWS` lines.
            Errors in lines occur during iteration.
    """
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = [name.strip() for name in next(lines, [])]
    except csv.Error as error:
        raise ValueError(f"it is not CSV: {error}") from None
    if len(columns) < 2 or not all(columns):
        raise ValueError("it is not a table: its first line has to name at least two columns")

    def rows() -> Iterator[Mapping[str, str]]:
        count = 0
        try:
            for line in lines:
                if not line:
                    continue
                if len(line) != len(columns):
                    raise ValueError(f"line {lines.line_num} has {len(line)} values for {len(columns)} columns")
                count += 1
                if count > MOST_ROWS:
                    raise ValueError(f"it has more than {MOST_ROWS} rows")
                yield {name: value.strip() for name, value in zip(columns, line, strict=True)}
        except csv.Error as error:
            raise ValueError(f"line {lines.line_num}: {error}") from None

    return unlike(columns), rows()


def unlike(columns: list[str]) -> list[str]:
    """Return the column names. Raises `ValueError` if two names differ only in case."""
    if len({name.casefold() for name in columns}) < len(columns):
        raise ValueError("it names a column twice")
    return columns
