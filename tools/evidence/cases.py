"""Recorded and predicted times: a loader creates `Cases`, `Cases.parts` or `held_out` splits them, and `report` prints
a table row per part with the cells of metrics (`evidence.metrics`)."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from front import Table

from kernrec.errors import UsageError

Array = np.ndarray
Files = Annotated[list[Path], typer.Option("--cases", help="files that `tools/evidence analytical --json` wrote")]


@dataclass(frozen=True)
class Cases:
    """Recorded and predicted times (or another quantity) of N launches.

    Cases have the columns `kernel`, `gpu`, `problem`, `recorded` and `predicted` (times in seconds), and further ones,
    such as the ends `low_s` and `high_s` of the 90 % interval.
    """

    columns: Mapping[str, Array]
    """Columns, (N,) each, keyed by name."""

    @classmethod
    def of(cls, **columns: Any) -> "Cases":
        """Create cases from columns, (N,) each or one value for all N cases."""
        arrays = [np.asarray(column, object if isinstance(column, str) else None) for column in columns.values()]
        return cls(dict(zip(columns, np.broadcast_arrays(*arrays), strict=True)))

    def __len__(self) -> int:
        return len(self["recorded"])

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    @property
    def error(self) -> Array:
        """Logarithm of recorded time over predicted time, or the column `error`, (N,)."""
        return np.asarray(self.columns.get("error", np.log(self["recorded"] / self["predicted"])))

    def take(self, rows: Array) -> "Cases":
        """Return the cases of some rows, given by their indices or by a mask."""
        return Cases({name: column[rows] for name, column in self.columns.items()})

    def rows(self, *names: str) -> dict[tuple[object, ...], Array]:
        """Return the indices of the cases with each combination of values in the columns, in order of appearance."""
        rows: dict[tuple[object, ...], list[int]] = {}
        for row, key in enumerate(zip(*(self[name].tolist() for name in names), strict=True)):
            rows.setdefault(key, []).append(row)
        return {key: np.array(members) for key, members in rows.items()}

    def parts(self, *names: str) -> Iterator[tuple[dict[str, object], "Cases"]]:
        """Yield (values keyed by column, cases) for each combination of values in the columns."""
        for key, rows in self.rows(*names).items():
            yield dict(zip(names, key, strict=True)), self.take(rows)

    def write(self, path: Path) -> None:
        """Write all columns to a JSON file."""
        path.write_text(json.dumps({name: column.tolist() for name, column in self.columns.items()}))


def joined(parts: Sequence[Cases]) -> Cases:
    """Concatenate cases. Keep the columns that all parts have."""
    names = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    return Cases({name: np.concatenate([part[name] for part in parts]) for name in names})


def read_cases(paths: Sequence[Path]) -> Cases:
    """Read cases from files that `Cases.write` wrote. Raises `UsageError` if a file is missing or has no cases."""
    parts = []
    for path in paths:
        if not path.is_file():
            raise UsageError(f"there is no file {path}; `tools/evidence analytical --json` writes one")
        parts.append(Cases({name: np.array(column) for name, column in json.loads(path.read_text()).items()}))
        if not len(parts[-1].columns.get("recorded", ())):
            raise UsageError(f"{path} has no cases; `tools/evidence analytical --json` writes them")
    return joined(parts)


Metric = Callable[[Cases], Mapping[str, object]]
"""Function that computes the cells of a table row from cases."""


def report(title: str, cases: Cases, by: Sequence[str], *metrics: Metric) -> None:
    """Print a table with one row for each combination of values in the columns `by`."""
    table = Table(title)
    for names, part in cases.parts(*by):
        table.row(names | {name: cell for metric in metrics for name, cell in metric(part).items()})


def held_out(cases: Cases, column: str) -> Iterator[tuple[str, Array]]:
    """Yield each value of a column, such as `kernel` or `gpu`, with a mask (N,) of the cases that have this value."""
    values = cases[column]
    for value in dict.fromkeys(values.tolist()):
        yield value, np.asarray(values == value)


def half(text: str) -> bool:
    """Return whether a name is in the first of two halves, into which a hash divides all names."""
    return sha256(text.encode()).digest()[-1] % 2 == 0


def ordered(names: list[str]) -> list[int]:
    """Return an order of names, as indices, of which the first N are a random sample that depends only on the names."""
    digests = [sha256(name.encode()).digest() for name in names]
    return sorted(range(len(digests)), key=digests.__getitem__)
