"""Flatten nested plain values into rows, for CSV and Arrow tables."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kernrec.util.human import config_text


def flat_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Flatten rows; each gets the columns of all rows, in order, with None for missing cells."""
    cells = [flat(row) for row in rows]
    none = dict.fromkeys(name for row in cells for name in row)
    return [none | row for row in cells]


def flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a row: nested keys become `outer.inner`, intervals `_low_` and `_high_`, and configs and lists text."""
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
