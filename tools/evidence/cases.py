"""Recorded and predicted times: a loader creates `Cases`, `Cases.parts` or `held_out` splits them, and `report` prints
a table row per part with the cells of metrics (`evidence.metrics`)."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from front import Table

from kernrec.errors import UsageError

Array = np.ndarray
Files = Annotated[list[Path], typer.Option("--cases", help="files that `tools/evidence analytical --json` wrote")]


@dataclass(frozen=True)
class Cases:
    """Recorded and predicted times (or another quantity) of N launches, in seconds. Arrays are (N,)."""

    kernel: Array
    gpu: Array
    problem: Array
    recorded: Array
    predicted: Array
    more: Mapping[str, Array] = field(default_factory=dict)
    """Further columns, keyed by name, such as the ends `low_s` and `high_s` of the 90 % interval."""

    @classmethod
    def of(cls, columns: Sequence[Array], more: Mapping[str, Array] | None = None) -> "Cases":
        """Create cases from the columns `kernel`, `gpu`, `problem`, `recorded` and `predicted`, in this order."""
        kernel, gpu, problem, recorded, predicted = columns
        return cls(kernel, gpu, problem, recorded, predicted, more or {})

    @classmethod
    def single(
        cls, kernel: str, gpu: str, problem: str, recorded: Array, predicted: Array,
        more: Mapping[str, Array] | None = None,
    ) -> "Cases":  # fmt: skip
        """Create cases that all have the same kernel, GPU and problem."""
        count = len(recorded)
        names = [np.full(count, name, dtype=object) for name in (kernel, gpu, problem)]
        return cls.of([*names, np.asarray(recorded), np.asarray(predicted)], more)

    def __len__(self) -> int:
        return len(self.recorded)

    @property
    def error(self) -> Array:
        """Logarithm of recorded time over predicted time, (N,)."""
        return np.asarray(np.log(self.recorded / self.predicted))

    def column(self, name: str) -> Array:
        """Return the column with this name, (N,)."""
        own: Array | None = vars(self).get(name)
        return self.more[name] if own is None else own

    def take(self, rows: Array) -> "Cases":
        """Return the cases of some rows, given by their indices or by a mask."""
        columns = [self.column(name)[rows] for name in _COLUMNS]
        return Cases.of(columns, {name: column[rows] for name, column in self.more.items()})

    def parts(self, *names: str) -> Iterator[tuple[dict[str, object], "Cases"]]:
        """Yield (values keyed by column, cases) for each combination of values in the columns, in order of
        appearance."""
        keys = list(zip(*(self.column(name).tolist() for name in names), strict=True))
        rows: dict[tuple[object, ...], list[int]] = {}
        for row, key in enumerate(keys):
            rows.setdefault(key, []).append(row)
        for key, members in rows.items():
            yield dict(zip(names, key, strict=True)), self.take(np.array(members))

    def write(self, path: Path) -> None:
        """Write all columns to a JSON file."""
        columns = {name: self.column(name) for name in _COLUMNS} | dict(self.more)
        path.write_text(json.dumps({name: column.tolist() for name, column in columns.items()}))


_COLUMNS = ("kernel", "gpu", "problem", "recorded", "predicted")


def joined(parts: Sequence[Cases]) -> Cases:
    """Concatenate cases. Keep the further columns that all parts have."""
    more = [name for name in parts[0].more if all(name in part.more for part in parts)]
    columns = [np.concatenate([part.column(name) for part in parts]) for name in (*_COLUMNS, *more)]
    return Cases.of(columns[:5], dict(zip(more, columns[5:], strict=True)))


def read_cases(paths: Sequence[Path]) -> Cases:
    """Read cases from files that `Cases.write` wrote. Raises `UsageError` if a file is missing or has no cases."""
    parts = []
    for path in paths:
        if not path.is_file():
            raise UsageError(f"there is no file {path}; `tools/evidence analytical --json` writes one")
        columns = {name: np.array(column) for name, column in json.loads(path.read_text()).items()}
        if not len(columns.get("recorded", ())):
            raise UsageError(f"{path} has no cases; `tools/evidence analytical --json` writes them")
        parts.append(Cases.of([columns.pop(name) for name in _COLUMNS], columns))
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
    values = cases.column(column)
    for value in dict.fromkeys(values.tolist()):
        yield value, np.asarray(values == value)


def half(text: str) -> bool:
    """Return whether a name is in the first of two halves, into which a hash divides all names."""
    return sha256(text.encode()).digest()[-1] % 2 == 0


def ordered(names: list[str]) -> list[int]:
    """Return an order of names, as indices, of which the first N are a random sample that depends only on the names."""
    digests = [sha256(name.encode()).digest() for name in names]
    return sorted(range(len(digests)), key=digests.__getitem__)
