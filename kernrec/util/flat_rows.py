"""Flatten nested plain values into rows, for CSV and Arrow tables."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kernrec.util.human import config_text


def flat_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without nesting. Each has the columns of all rows, in order, and None in missing cells."""
    cells = [flat(row) for row in rows]
    none = dict.fromkeys(name for row in cells for name in row)
    return [none | row for row in cells]


def flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a row without nesting: `outer.inner`, intervals as `_low_` and `_high_`, configs and lists as text."""
    cells: dict[str, Any] = {}
    for name, value in row.items():
        key = prefix + name
        if name == "config":
            cells[key] = config_text(value)
        elif isinstance(value, Mapping):
            cells |= flat(value, key + ".")
        elif name.split("_")[-2:-1] == ["interval"]:
            quantity, _, unit = key.partition("_interval_")
            low, high = value or (None, None)
            cells |= {f"{quantity}_low_{unit}": low, f"{quantity}_high_{unit}": high}
        elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            cells[key] = json.dumps(value)
        elif isinstance(value, list | tuple):
            cells[key] = "; ".join(map(str, value))
        else:
            cells[key] = value
    return cells
