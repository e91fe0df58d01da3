"""List a kernel's configs explicitly, if they are not a product of values (as in an autotuner's list).

    [configs]
    columns = ["block_m", "num_warps", "grid_x"]
    rows = [[64, 4, 4096], [128, 8, 2048]]

The columns include every tunable. Further columns hold other numbers of each config, such as the number of blocks;
expressions may use them like a let.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from kernrec.errors import UsageError
from kernrec.kernel.expression import is_identifier
from kernrec.kernel.toml_table import Table
from kernrec.util.light_dataclass import dataclass

_MOST_ROWS = 65_536


@dataclass(frozen=True, eq=False)
class ConfigList:
    """Configs of a kernel, one per row."""

    columns: tuple[str, ...]
    """Names of all columns: the tunables and the further numbers."""
    rows: tuple[tuple[int, ...], ...]
    tunables: tuple[str, ...]
    """The columns that are tunables, in the kernel's order."""

    @property
    def further(self) -> tuple[str, ...]:
        """Return the columns that are not tunables."""
        return tuple(name for name in self.columns if name not in self.tunables)

    @cached_property
    def by_config(self) -> dict[tuple[int, ...], dict[str, int]]:
        """Map each config's tunable values to all its numbers."""
        rows = (dict(zip(self.columns, row, strict=True)) for row in self.rows)
        return {tuple(row[name] for name in self.tunables): row for row in rows}

    def numbers(self, config: Mapping[str, int]) -> dict[str, int]:
        """Return the further numbers of a config. Raises `UsageError` if the list lacks it."""
        row = self.by_config.get(tuple(config[name] for name in self.tunables))
        if row is None:
            shown = " ".join(f"{name}={config[name]}" for name in self.tunables)
            raise UsageError(f"{shown} is not among the {len(self.rows)} listed configs")
        return {name: row[name] for name in self.further}

    def digits(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return by column each row's index into `values`, int64 (rows,); rows are sorted by these indices."""
        places = {name: {int(v): i for i, v in enumerate(choices)} for name, choices in values.items()}
        digits_of_rows = {name: [places[name][row[i]] for row in self.rows] for i, name in enumerate(self.columns)}
        digits = {name: np.array(digits_of_rows[name], dtype=np.int64) for name in values}
        order = np.lexsort([digits[name] for name in reversed(self.tunables)])
        return {name: digit[order] for name, digit in digits.items()}

    def values(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the distinct values of each column in ascending order, int64."""
        return {name: np.unique([row[self.columns.index(name)] for row in self.rows]) for name in names}


def listed_configs(top: Table, values: Mapping[str, Sequence[int]]) -> ConfigList | None:
    """Return the `[configs]` table of a spec, or None if there is none; `values` holds the tunables' values by name.
    Raises `UsageError` if the table does not fit the tunables.
    """
    data = top.take("configs", dict, "a table with columns and rows", None)
    if data is None:
        return None
    table = top.inner("[configs]", data)
    columns = table.take("columns", list, "a list of names")
    rows = table.take("rows", list, "a list of rows")
    table.done()
    for name in columns:
        if not isinstance(name, str) or not is_identifier(name):
            raise table.fail("columns", "names of lower-case letters, digits and _", name)
    if len(set(columns)) < len(columns) or not values.keys() <= set(columns):
        raise table.fail("columns", f"every tunable once ({', '.join(values)})", columns)
    if not 1 <= len(rows) <= _MOST_ROWS:
        raise table.fail("rows", f"1 to {_MOST_ROWS} configs", len(rows))
    for row in rows:
        if not isinstance(row, list) or len(row) != len(columns) or not all(type(v) is int for v in row):
            raise table.fail("rows", f"rows of {len(columns)} integers", row)
        for name, value in zip(columns, row, strict=True):
            if name in values and value not in values[name]:
                raise table.fail(f"rows: {name}", f"one of {', '.join(map(str, values[name]))}", value)
            if abs(value) >= 2**31:
                raise table.fail(f"rows: {name}", "an integer below 2**31", value)
    listed = ConfigList(tuple(columns), tuple(map(tuple, rows)), tuple(values))
    if len(listed.by_config) < len(rows):
        raise table.fail("rows", "different configs", "a config twice")
    return listed
